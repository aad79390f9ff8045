"""What a config costs before anything is compiled: the lines of `launch.plan`."""

from fl_sketch.config import privacy
from fl_sketch.core import shown
from fl_sketch.engine import gossip
from fl_sketch.engine.costs import FLOAT_BYTES
from fl_sketch.run import display
from fl_sketch.run.facts import facts_of
from fl_sketch.run.setup import Setup


def lines(setup: Setup, graph: str = "") -> list[str]:
    """Returns the lines that a run begins with, and the bytes of its rounds.

    Args:
      graph: the graph of a network without a server, as `gossip.edges_of` takes it.
    """
    config, facts, prices = setup.config, facts_of(setup), setup.experiment.prices
    up, text = facts["bytes_up_planned"], display.plan(setup)
    if up is None:
        text.append("per round: the bytes depend on the round")
    else:
        clients = privacy.expected(config)
        in_all, rounds_away = config.rounds * clients, config.data.clients / clients
        down = prices.within + prices.usual(rounds_away)
        average = prices.average(config.rounds, rounds_away) + prices.within
        first = prices.once * min(config.data.clients, in_all)
        about = "about " * bool(prices.followed or prices.once)
        text.append(
            f"per round: {clients * up} bytes up, {about}{clients * down} down; "
            f"{config.rounds} rounds: {shown.sized(in_all * up)} up, "
            f"{about}{shown.sized(round(in_all * average) + first)} down"
            + ", first downloads included"
            * bool(about)
        )
    if not graph:
        return text
    if up is None:
        return [*text, "without a server: the bytes depend on the round"]
    nodes, exchanges = config.data.clients, facts["exchanges"]
    edges = gossip.edges_of(graph, nodes)
    flood, tree = gossip.flood(edges, nodes), gossip.tree(edges, nodes)
    each = up + exchanges * gossip.ORIGIN_BYTES
    text.append(
        f"without a server: {len(edges)} edges; flood: every message reaches all nodes "
        f"in {flood.hops} hops; per round: {flood.messages * each} bytes in total, at "
        f"most {flood.most * each} over one edge in one direction"
    )
    if up != FLOAT_BYTES * facts["sketch_size"]:
        longer = "  tree: impossible, since a sum of these messages is longer than one"
        return [*text, longer]
    return [
        *text,
        f"  tree: only sums, {tree.messages} messages per exchange in {tree.hops} "
        f"hops; per round: {tree.messages * up} bytes in total, at most {up} over one "
        "edge in one direction",
    ]
