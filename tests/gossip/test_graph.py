"""Graphs are what they are called, and a flood costs what counting it costs."""

import numpy as np
import pytest

from fl_sketch.gossip import graph as graphs

LINE = [(0, 1), (1, 2), (2, 3)]
GRAPHS = {
    "pair": (graphs.ring(2), 1, 1),
    "ring": (graphs.ring(7), 3, 7),
    "grid": (graphs.grid(3, 4), 5, 17),
    "line": (graphs.from_edges(LINE[::-1]), 3, 3),
    "star": (graphs.from_edges([(0, other) for other in range(1, 6)]), 2, 5),
    "regular": (graphs.random_regular(20, 3, seed=1), None, 30),
    "regular, even": (graphs.random_regular(15, 4, seed=1), None, 30),
}
every_graph = pytest.mark.parametrize("name", GRAPHS)


def flood_by_hand(graph):
    """Returns (hops until all know all, messages over each edge in each direction)."""
    near = [np.flatnonzero(row) for row in graphs.neighbours(graph)]
    edge = {tuple(pair): number for number, pair in enumerate(graph.edges.tolist())}
    known = [{node} for node in range(graph.nodes)]
    fresh = [{node: set()} for node in range(graph.nodes)]  # message: who sent it here
    crossed, hops = np.zeros((len(graph.edges), 2), int), 0
    while any(len(own) < graph.nodes for own in known):
        hops += 1
        heard = [{} for _ in range(graph.nodes)]
        for node, messages in enumerate(fresh):
            for message, senders in messages.items():
                for other in set(near[node].tolist()) - senders:
                    there = (min(node, other), max(node, other))
                    crossed[edge[there], int(node > other)] += 1
                    heard[other].setdefault(message, set()).add(node)
        fresh = [
            {m: s for m, s in own.items() if m not in known[node]}
            for node, own in enumerate(heard)
        ]
        for own, new in zip(known, fresh, strict=True):
            own.update(new)
    return hops, crossed


@every_graph
def test_a_flood_takes_the_diameter_and_crosses_as_counted(name):
    graph, diameter, edges = GRAPHS[name]
    hops, crossed = flood_by_hand(graph)
    assert graphs.diameter(graph) == hops == (diameter or hops)
    assert len(graph.edges) == edges
    np.testing.assert_array_equal(graphs.crossings(graph), crossed)
    per_message = graphs.bytes_over_edges(graph, message=40)
    np.testing.assert_array_equal(per_message, crossed * 44)


def test_a_regular_graph_is_regular_and_another_seed_is_another():
    graph = GRAPHS["regular"][0]
    assert (graphs.neighbours(graph).sum(axis=0) == 3).all()
    other = graphs.random_regular(20, 3, seed=2)
    assert (graph.edges != other.edges).any()


def test_a_file_of_edges_is_a_graph(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("2 1\n0 1\n\n3 2\n")
    np.testing.assert_array_equal(graphs.read(path).edges, LINE)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda path: graphs.from_edges([]), "edges=\\[\\]"),
        (lambda path: graphs.from_edges([(1, 1)]), "two nodes"),
        (lambda path: graphs.from_edges([(0, 1), (2, 3)]), "connected.*got 2 nodes"),
        (lambda path: graphs.ring(1), "nodes - 1=0"),
        (lambda path: graphs.random_regular(5, 3, seed=0), "nodes=5.*got 3"),
        (lambda path: graphs.random_regular(4, 4, seed=0), "nodes=4.*got 4"),
        (graphs.read, "two whole numbers"),
    ],
)
def test_what_is_no_graph_is_refused_in_a_line(call, words, tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("0 1\n2\n")
    with pytest.raises(ValueError, match=words) as caught:
        call(path)
    assert "\n" not in str(caught.value)
