"""Graphs are what they are called, and each name names one."""

import time

import numpy as np
import pytest

from fl_sketch.engine import graph as graphs

LINE = [(0, 1), (1, 2), (2, 3)]
GRAPHS = {
    "pair": (graphs.ring(2), 1, 1),
    "ring": (graphs.ring(7), 3, 7),
    "grid": (graphs.grid(3, 4), 5, 17),
    "line": (graphs.from_edges(LINE[::-1]), 3, 3),
    "star": (graphs.from_edges([(0, other) for other in range(1, 6)]), 2, 5),
    "complete": (graphs.complete(5), 1, 10),
    "regular": (graphs.random_regular(20, 3, seed=1), None, 30),
    "regular, even": (graphs.random_regular(15, 4, seed=1), None, 30),
}
every_graph = pytest.mark.parametrize("name", GRAPHS)


def neighbours(graph):
    """Returns which nodes are joined, bool [nodes, nodes]."""
    near = np.zeros((graph.nodes, graph.nodes), bool)
    first, second = graph.edges.T
    near[first, second] = near[second, first] = True
    return near


@every_graph
def test_a_graph_has_its_edges_and_its_diameter(name):
    graph, diameter, edges = GRAPHS[name]
    assert len(graph.edges) == edges
    ways, near = np.eye(graph.nodes), neighbours(graph)
    for hop in range(graph.nodes):
        assert ((graphs.distances(graph) <= hop) == (ways > 0)).all()
        ways = ways + ways @ near
    assert diameter in (None, graphs.distances(graph).max())


@every_graph
def test_the_links_to_a_root_are_the_shortest_ways(name):
    graph = GRAPHS[name][0]
    for root in range(graph.nodes):
        far, met = graphs.distances(graph)[root], {root}
        for node, parent in graphs.links(graph, root).tolist():
            assert neighbours(graph)[node, parent] and parent in met
            assert far[node] == far[parent] + 1
            met.add(node)
        assert met == set(range(graph.nodes))


def test_a_regular_graph_is_regular_and_another_seed_is_another():
    graph = GRAPHS["regular"][0]
    assert (neighbours(graph).sum(axis=0) == 3).all()
    other = graphs.random_regular(20, 3, seed=2)
    assert (graph.edges != other.edges).any()


def test_a_dense_regular_graph_is_drawn_while_one_waits():
    begun = time.monotonic()
    graph = graphs.random_regular(400, 100, seed=0)
    assert (neighbours(graph).sum(axis=0) == 100).all()
    assert time.monotonic() - begun < 60  # seconds; copies of all edges take 150


@pytest.mark.parametrize("content", ["", "0 1\n-1 2\n", "0 1\n2 3\n", "1 1\n"])
def test_a_file_that_is_no_graph_is_named(content, tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"got graph={path}: Expected "):
        graphs.named(str(path), 4)


def test_a_file_of_edges_is_a_graph(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("2 1\n0 1\n\n3 2\n")
    np.testing.assert_array_equal(graphs.read(path).edges, LINE)
    np.testing.assert_array_equal(graphs.named(str(path), 4).edges, LINE)


@pytest.mark.parametrize(
    ("text", "graph"),
    [
        ("ring", graphs.ring(12)),
        ("grid:3x4", graphs.grid(3, 4)),
        ("regular:3", graphs.random_regular(12, 3, seed=graphs.REGULAR)),
        ("complete", graphs.complete(12)),
    ],
)
def test_a_name_is_a_graph(text, graph):
    np.testing.assert_array_equal(graphs.named(text, 12).edges, graph.edges)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda path: graphs.from_edges([]), "edges=\\[\\]"),
        (lambda path: graphs.from_edges([(1, 1)]), "two nodes"),
        (lambda path: graphs.from_edges([(0, 1), (2, 3)]), "connected.*got 2 nodes"),
        (lambda path: graphs.from_edges([(0, 9999)]), "nodes <= 1024.*nodes=10000"),
        (lambda path: graphs.ring(1), "nodes - 1=0"),
        (lambda path: graphs.complete(1025), "nodes <= 1024.*nodes=1025"),
        (lambda path: graphs.grid(99, 99), "nodes <= 1024.*nodes=9801"),
        (lambda path: graphs.random_regular(5, 3, seed=0), "nodes=5.*got 3"),
        (lambda path: graphs.random_regular(4, 4, seed=0), "nodes=4.*got 4"),
        (graphs.read, "two whole numbers"),
        (lambda path: graphs.named("rings", 4), "or a file of edges, got graph=rings"),
        (lambda path: graphs.named("ring:4", 4), "or a file of edges, got graph=ring:"),
        (lambda path: graphs.named("grid:4", 4), "got graph=grid:4"),
        (lambda path: graphs.named("regular:4", 4), "graph=regular:4: .* got 4"),
        (lambda path: graphs.named("grid:2x3", 4), "of 4 nodes.* graph=grid:2x3 of 6"),
        (lambda path: graphs.named(str(path), 4), "two whole numbers"),
        (lambda path: graphs.named(str(path.parent), 4), "or a file of edges, got"),
    ],
)
@pytest.mark.parametrize(
    "content",
    [b"0 1\n2\n", b"\xff\xfe", b"0 99999999999999999", b"0 -99999999999999999999"],
)
def test_what_is_no_graph_is_refused_in_a_line(call, words, content, tmp_path):
    path = tmp_path / "edges.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        call(path)
    assert "\n" not in str(caught.value)
