"""The bytes of a config, before anything runs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from fl_sketch.config import privacy
from fl_sketch.engine import relays
from fl_sketch.engine.costs import FLOAT_BYTES
from fl_sketch.engine.graph import Graph
from fl_sketch.engine.task import Task
from fl_sketch.run import display
from fl_sketch.workdir import rows


def lines(config: ConfigDict, task: Task, *, graph: Graph | None = None) -> list[str]:
    """Returns what to print of a plan.

    Args:
      task: what was built from it, not compiled.
      graph: the graph of a network without a server, whose nodes are the clients; None:
        that of the config, if it names one.
    """
    relay, text = task.known.prices.relay, _costs(config, task)
    if relay and graph is None:
        graph = relay.graph
    return text + (_over_edges(task.facts, graph) if graph else [])


def _costs(config: ConfigDict, task: Task) -> list[str]:
    facts, prices = task.facts, task.known.prices
    clients, up = privacy.expected(config), facts["bytes_up_planned"]
    rounds_away = config.data.clients / clients
    down = prices.within + prices.usual(rounds_away)
    text = [
        f"{facts['algorithm']}: {facts['model']} of {display.size(facts)} on "
        f"{facts['dataset']}, {clients} of {config.data.clients} clients per round",
        f"upload: {display.message(facts)}",
    ]
    if prices.relay:  # there is no server
        return text
    if up is None:
        return [*text, "per round: the bytes depend on the round"]
    in_all = config.rounds * clients
    average = prices.average(config.rounds, rounds_away) + prices.within
    fetched = round(in_all * average) + prices.once * min(config.data.clients, in_all)
    extra = prices.followed or prices.once
    about, first = "about " * bool(extra), ", first downloads included" * bool(extra)
    return [
        *text,
        f"per round: {clients * up} bytes up, {about}{clients * down} down; "
        f"{config.rounds} rounds: {rows.sized(in_all * up)} up, "
        f"{about}{rows.sized(fetched)} down{first}",
    ]


def _over_edges(facts: Mapping[str, Any], graph: Graph) -> list[str]:
    """Returns what the same run costs without a server, by each way of forwarding."""
    message, exchanges = facts["bytes_up_planned"], facts["exchanges"]
    if message is None:
        return ["without a server: the bytes depend on the round"]
    flood, tree = relays.flood(graph), relays.tree(graph)
    text = [
        f"without a server: {len(graph.edges)} edges; flood: every message reaches all "
        f"nodes in {flood.hops} hops; per round: "
        f"{_crossed(flood.over_edges(message, exchanges))}"
    ]
    if message != FLOAT_BYTES * facts["sketch_size"]:
        return [
            *text,
            "  tree: impossible, since a sum of these messages is longer than one",
        ]
    return [
        *text,
        f"  tree: only sums, {tree.crossings.sum()} messages per exchange in "
        f"{tree.hops} hops; per round: {_crossed(tree.over_edges(message, exchanges))}",
    ]


def _crossed(edges: np.ndarray) -> str:
    """Returns how many bytes crossed the edges, there and back, as text."""
    whole, most = edges.sum(), edges.max()
    return f"{whole} bytes in total, at most {most} over one edge in one direction"
