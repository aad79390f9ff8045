"""What a config costs before anything is compiled: the lines of `launch.plan`."""

from ml_collections import ConfigDict

from fl_sketch.config import privacy
from fl_sketch.engine import relays
from fl_sketch.engine.costs import FLOAT_BYTES
from fl_sketch.engine.graph import Graph
from fl_sketch.engine.task import Task
from fl_sketch.run import display
from fl_sketch.workdir import rows


def lines(config: ConfigDict, task: Task, graph: Graph | None = None) -> list[str]:
    """Returns the lines that a run begins with, and the bytes of its rounds.

    Args:
      task: what was built from the config, not compiled.
      graph: the graph of a network without a server, whose nodes are the clients; None:
        that of the config, if it names one.
    """
    facts, prices = task.facts, task.known.prices
    up, text = facts["bytes_up_planned"], display.plan(config, task)
    if prices.relay:
        graph = graph or prices.relay.graph
    elif up is None:
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
            f"{config.rounds} rounds: {rows.sized(in_all * up)} up, "
            f"{about}{rows.sized(round(in_all * average) + first)} down"
            + ", first downloads included"
            * bool(about)
        )
    if graph is None:
        return text
    if up is None:
        return [*text, "without a server: the bytes depend on the round"]
    flood, tree = relays.flood(graph), relays.tree(graph)
    text.append(
        f"without a server: {len(graph.edges)} edges; flood: every message reaches all "
        f"nodes in {flood.hops} hops; per round: "
        f"{_crossed(flood.over_edges(up, facts['exchanges']))}"
    )
    if up != FLOAT_BYTES * facts["sketch_size"]:
        longer = "  tree: impossible, since a sum of these messages is longer than one"
        return [*text, longer]
    return [
        *text,
        f"  tree: only sums, {tree.crossings.sum()} messages per exchange in "
        f"{tree.hops} hops; per round: "
        f"{_crossed(tree.over_edges(up, facts['exchanges']))}",
    ]


def _crossed(edges) -> str:
    """Returns how many bytes crossed the edges, int [edges, 2], as text."""
    total, most = edges.sum(), edges.max()
    return f"{total} bytes in total, at most {most} over one edge in one direction"
