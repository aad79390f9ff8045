"""What a run without a server says of its nodes, and what crossed the edges."""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine
from fl_sketch.core import files
from fl_sketch.core.protocols import Algorithm, Tree
from fl_sketch.engine.costs import Traffic
from fl_sketch.engine.gossip import Relay
from fl_sketch.run import host_states
from fl_sketch.run.program import Program

EDGES = "edges.csv"


class Apart(ArithmeticError):
    """Nodes that have heard the same no longer have the same."""


def facts(
    program: Program, algorithm: Algorithm, params: Tree, talk: Traffic
) -> dict[str, Any]:
    """Returns what the summary says of a program without a server.

    Args:
      program: the program.
      algorithm: its algorithm.
      params: shapes of the parameters.
      talk: what a client says in a round.
    """
    network, relay = program.config.network, program.relay
    assert relay
    kept = host_states.row_bytes(algorithm, params, node=True)
    return {
        "graph": network.graph,
        "relay": relay.name,
        "edges": len(relay.graph.edges),
        "hops": relay.hops,
        "messages": len(talk.sent) * int(relay.crossings.sum()),
        "bytes_over_edges_planned": over_edges(relay, talk),
        "download": "none",
        "client_state_bytes": kept * relay.graph.nodes,
        "client_state": program.bank,
        "kept_updates": "all nodes",
    }


def over_edges(relay: Relay, talk: Traffic) -> int | None:
    """Returns the bytes over all edges in a round; None: they depend on the round.

    Args:
      relay: the way of messages over a graph.
      talk: what a client says in a round.
    """
    if talk.bits_up is None:
        return None
    return int(relay.over_edges(-(-talk.bits_up // 8), len(talk.sent)).sum())


def require_alike(state: engine.State, axis: int = 0) -> None:
    """Raises unless all nodes have the same server, to the last bit.

    They have heard the same numbers, and do the same with them. A device that adds up
    in no fixed order would drive them apart, and which model is meant were then unsaid.

    Args:
      state: the state of a run without a server; or of several, along axes before.
      axis: the axis of the nodes.

    Raises:
      Apart: naming the first node that has another one than node 0.
    """
    (apart,) = np.nonzero(_differs(state.clients.server, axis))
    if apart.size:
        done = int(np.ravel(state.server.round)[0])
        msg = (
            f"Expected all nodes to have the same model after round {done}, got "
            f"another one at node {apart[0]} than at node 0: their arithmetic differs, "
            "as where a device adds up in no fixed order."
        )
        raise Apart(msg)


def write_edges(folder: pathlib.Path, relay: Relay, total: int) -> None:
    """Writes a row for each edge: its nodes, and the bytes over it, there and back.

    Args:
      folder: the folder of the run.
      relay: the way of its messages.
      total: the bytes over all edges so far.
    """
    names = ("node", "neighbour", "bytes_there", "bytes_back")
    table = np.concatenate([relay.graph.edges, relay.shared_out(total)], axis=1)
    files.write_rows(
        folder / EDGES,
        [dict(zip(names, row, strict=True)) for row in table.tolist()],
    )


@functools.partial(jax.jit, static_argnums=1)
def _differs(servers: Tree, axis: int) -> jax.Array:
    """Returns which nodes have another server than the first, bool [nodes]."""

    def of_leaf(leaf):
        leaf = jnp.moveaxis(leaf, axis, 0)
        same = (leaf == leaf[:1]) | ((leaf != leaf) & (leaf[:1] != leaf[:1]))  # NaN
        return ~same.reshape(len(leaf), -1).all(axis=1)

    return jnp.stack([of_leaf(leaf) for leaf in jax.tree.leaves(servers)]).any(axis=0)
