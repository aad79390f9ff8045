"""From the network section of a config to a relay over a graph of clients.

Without a server every client is a node that takes part in every round and makes the
server's step itself. Options of a server that chooses, waits or sends are refused.
"""

from ml_collections import ConfigDict

from fl_sketch.config import privacy
from fl_sketch.config.parse import NO_GRAPH, section
from fl_sketch.core.mappings import flat
from fl_sketch.engine import graph as graphs
from fl_sketch.engine.relays import RELAYS, Relay

PLAIN = "flood"  # the relay of a config with a server, which does not read it
ALLOWED = {  # what a round without a server can be, by key
    "cohort.sampling": ("everyone",),
    "cohort.weighting": ("equal",),
    "cohort.dropout": (0.0,),
    "cohort.available": ("",),
    "cohort.times": ("",),
    "download": ("cheapest",),
}


def relay_of(config: ConfigDict) -> Relay | None:
    """Returns the relay over a config's graph of its clients; None: it has a server.

    Raises:
      ValueError: in one line, for a graph or a relay that there is not, or a config
        that asks for what only a server has.
    """
    own = config.network
    with section("network"):
        if own.graph == NO_GRAPH:
            if own.relay != PLAIN:
                msg = f"Expected a graph with relay={own.relay}, got graph={NO_GRAPH}."
                raise ValueError(msg)
            return None
        _require_plain(config)
        return RELAYS[own.relay](graphs.named(own.graph, config.data.clients))


def _require_plain(config: ConfigDict) -> None:
    """Raises for what a round on a graph cannot be."""
    graph, values = config.network.graph, flat(config)
    if privacy.protection_of(config).bounded:
        msg = (
            f"Expected no privacy with graph={graph}, where every node sees all "
            f"messages, got algorithm={config.algorithm} with "
            f"privacy.bound={config.privacy.bound}."
        )
        raise ValueError(msg)
    for key, allowed in ALLOWED.items():
        if values[key] not in allowed:
            msg = (
                f"Expected {key}={allowed[0]!r} with graph={graph} (all clients in "
                f"every round, no server), got {key}={values[key]!r}."
            )
            raise ValueError(msg)
