"""Graphs of clients, for networks without a server. Runs on the host.

>>> line = named("grid:1x3", 3)
>>> line.edges.tolist(), int(distances(line).max())
([[0, 1], [1, 2]], 2)
"""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fl_sketch.core import validate

WORDS = "ring, grid:HEIGHTxWIDTH, regular:DEGREE, complete or a file of edges"
MOST = 1024  # nodes, whose distances are a table
SWAPS = 10  # of each edge, on average, when a random regular graph is made
REGULAR = 0x6EA9  # the seed of regular graphs that are named


class Graph(NamedTuple):
    """An undirected connected graph.

    Attributes:
      nodes: the number of nodes, which are 0 ... nodes - 1.
      edges: pairs of nodes, int32 [edges, 2], the smaller first, sorted.
    """

    nodes: int
    edges: np.ndarray


def from_edges(edges: Sequence[tuple[int, ...]] | np.ndarray) -> Graph:
    """Returns the graph of pairs of nodes, in any order and direction.

    Raises:
      ValueError: for no edge, an edge from a node to itself, more than `MOST` nodes, or
        a graph that is not connected.
    """
    pairs = np.sort(np.asarray(edges, np.int64).reshape(-1, 2), axis=1)
    if not len(pairs) or pairs.min() < 0 or (pairs[:, 0] == pairs[:, 1]).any():
        msg = f"Expected edges between two nodes >= 0 each, got edges={edges!r:.60}."
        raise ValueError(msg)
    _require_few(int(pairs.max()) + 1)
    graph = Graph(int(pairs.max()) + 1, np.unique(pairs, axis=0).astype(np.int32))
    missing = graph.nodes - len(links(graph, 0)) - 1
    if missing:
        msg = (
            f"Expected a connected graph, got {missing} nodes without a path to node 0."
        )
        raise ValueError(msg)
    return graph


def named(text: str, nodes: int) -> Graph:
    """Returns the graph that a flag or a config names.

    Args:
      text: "ring", "complete", "grid:2x3", "regular:4", or the path of a file. A
        regular graph is drawn at random, always the same one.

    Raises:
      ValueError: in one line, for a text that names no graph with so many nodes.
    """
    kind, _, rest = text.partition(":")
    graph = None
    try:
        if text in ("ring", "complete"):
            graph = {"ring": ring, "complete": complete}[text](nodes)
        elif kind == "grid":
            height, width = map(int, rest.split("x"))
            graph = grid(height, width)
        elif kind == "regular":
            graph = random_regular(nodes, int(rest), seed=REGULAR)
        elif pathlib.Path(text).is_file():
            graph = read(text)
    except ValueError as error:
        msg = f"Expected graph to be {WORDS}, got graph={text}: {error}"
        raise ValueError(msg) from None
    if graph is None:
        msg = f"Expected graph to be {WORDS}, got graph={text}."
        raise ValueError(msg)
    if graph.nodes != nodes:
        msg = (
            f"Expected a graph of {nodes} nodes, one for each client, got "
            f"graph={text} of {graph.nodes}."
        )
        raise ValueError(msg)
    return graph


def read(path: str) -> Graph:
    """Returns the graph of a file with the two nodes of an edge on each line.

    Raises:
      ValueError: for any other line, and as `from_edges` does.
    """
    try:
        lines = pathlib.Path(path).read_text().splitlines()
        pairs = [tuple(map(int, line.split())) for line in lines if line.strip()]
        whole = all(len(pair) == 2 and max(map(abs, pair)) < 2**31 for pair in pairs)
    except ValueError:  # which a UnicodeDecodeError is, too
        pairs, whole = [], False
    if not whole:
        msg = f"Expected two whole numbers on each line of {path}."
        raise ValueError(msg)
    return from_edges(pairs)


def ring(nodes: int) -> Graph:
    """The graph in which each node has two neighbours; of two nodes, one."""
    _require_size(nodes)
    return from_edges([(node, (node + 1) % nodes) for node in range(nodes)])


def complete(nodes: int) -> Graph:
    """The graph in which each node is joined to all others."""
    _require_size(nodes)
    return from_edges(np.stack(np.triu_indices(nodes, 1), axis=1))


def grid(height: int, width: int) -> Graph:
    """The graph of height x width nodes with neighbours in four directions."""
    validate.at_least_one(height=height, width=width)
    _require_few(height * width)
    number = np.arange(height * width).reshape(height, width)
    right = np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()], 1)
    below = np.stack([number[:-1].ravel(), number[1:].ravel()], 1)
    return from_edges(np.concatenate([right, below]))


@functools.cache  # every point of a sweep needs it
def random_regular(nodes: int, degree: int, *, seed: int) -> Graph:
    """A random graph in which each node has `degree` neighbours.

    The edges of a circulant graph exchange ends at random, which keeps all degrees,
    until the graph is well mixed and connected.

    Raises:
      ValueError: unless 2 <= degree < nodes and nodes * degree is even.
    """
    if not 2 <= degree < nodes or nodes * degree % 2:
        msg = f"Expected 2 <= degree < nodes={nodes}, their product even, got {degree}."
        raise ValueError(msg)
    _require_few(nodes)
    steps = range(1, degree // 2 + 1)
    edges = {_edge(a, (a + step) % nodes) for a in range(nodes) for step in steps}
    if degree % 2:
        edges |= {_edge(a, a + nodes // 2) for a in range(nodes // 2)}
    random = np.random.default_rng(seed)
    while True:
        edges = _swapped(sorted(edges), random)
        try:
            return from_edges(sorted(edges))
        except ValueError:  # it is not connected
            continue


def distances(graph: Graph) -> np.ndarray:
    """Returns int [nodes, nodes], the hops between any two nodes."""
    from scipy.sparse import csgraph  # takes half a second to import

    hops = csgraph.shortest_path(_matrix(graph), unweighted=True)
    return hops.astype(np.int64)


def links(graph: Graph, root: int) -> np.ndarray:
    """Returns a spanning tree of shortest paths to a root, found breadth first.

    Of several neighbours on such a path a node takes the one that was found first.

    Returns:
      Pairs of a node and the next one on its path, int32 [nodes - 1, 2], nearer nodes
      before farther ones; fewer pairs if the graph is not connected.
    """
    from scipy.sparse import csgraph

    order, before = csgraph.breadth_first_order(_matrix(graph), root)
    return np.stack([order, before[order]], axis=1)[1:].astype(np.int32)


def _matrix(graph: Graph) -> Any:
    """Returns the adjacency matrix, neighbours in the order of their numbers."""
    from scipy import sparse

    both = np.concatenate([graph.edges, graph.edges[:, ::-1]])
    shape = graph.nodes, graph.nodes
    return sparse.csr_array((np.ones(len(both)), both.T), shape=shape)


def _require_size(nodes: int) -> None:
    validate.at_least_one(**{"nodes - 1": nodes - 1})
    _require_few(nodes)


def _require_few(nodes: int) -> None:
    validate.at_most(MOST, "the limit of one machine", nodes=nodes)


def _edge(a: int, b: int) -> tuple[int, int]:
    return min(a, b), max(a, b)


def _swapped(edges: list[tuple[int, int]], random) -> set[tuple[int, int]]:
    """Returns edges after many exchanges of (a, b), (c, d) for (a, d), (c, b)."""
    present, edges = set(edges), list(edges)
    for _ in range(SWAPS * len(edges)):
        i, j = random.integers(len(edges), size=2)
        (a, b), (c, d) = edges[i], edges[j]
        if random.integers(2):
            c, d = d, c
        new = {_edge(a, d), _edge(c, b)}
        if len({a, b, c, d}) == 4 and not new & present:
            present -= {edges[i], edges[j]}
            present |= new
            edges[i], edges[j] = new
    return present
