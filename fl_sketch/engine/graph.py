"""Networks without a server: who talks to whom. Runs on the host.

>>> line = named("grid:1x3", 3)
>>> line.edges.tolist(), diameter(line)
([[0, 1], [1, 2]], 2)
"""

import functools
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from fl_sketch.core import validate

WORDS = "ring, grid:HEIGHTxWIDTH, regular:DEGREE, complete or a file of edges"
MOST = 1024  # nodes: their distances are a table, and each plays its own part
SWAPS = 10  # an edge, on average, when a random regular graph is made
REGULAR = 0x6EA9  # a seed: of regular graphs that are asked for by name


class Graph(NamedTuple):
    """An undirected connected graph on the nodes 0 ... nodes - 1.

    Attributes:
      nodes: the number of nodes.
      edges: pairs of nodes, int32 [edges, 2], the smaller first, sorted.
    """

    nodes: int
    edges: np.ndarray


def from_edges(edges: Sequence[tuple[int, ...]] | np.ndarray) -> Graph:
    """Returns the graph of `edges`, pairs of nodes in any order and direction.

    Raises:
      ValueError: for no edge, a node joined to itself, more than `MOST` nodes, or a
        graph in parts.
    """
    pairs = np.sort(np.asarray(edges, np.int64).reshape(-1, 2), axis=1)
    if not len(pairs) or pairs.min() < 0 or (pairs[:, 0] == pairs[:, 1]).any():
        msg = f"Expected edges between two nodes >= 0 each, got edges={edges!r:.60}."
        raise ValueError(msg)
    _require_few(int(pairs.max()) + 1)
    graph = Graph(int(pairs.max()) + 1, np.unique(pairs, axis=0).astype(np.int32))
    missing = graph.nodes - len(links(graph, 0)) - 1
    if missing:
        msg = f"Expected a connected graph, got {missing} nodes out of reach of node 0."
        raise ValueError(msg)
    return graph


def named(text: str, nodes: int) -> Graph:
    """Returns the graph that a flag or a config names.

    Args:
      text: one of `WORDS`, as "ring", "grid:2x3", "regular:4", or where a file is. A
        regular graph is drawn at random, the same one whenever it is asked for.
      nodes: the number of its nodes.

    Raises:
      ValueError: in one line, for a text that names no graph of so many nodes.
    """
    kind, _, rest = text.partition(":")
    try:
        graph = _named(kind, rest, nodes)
        if graph is None and pathlib.Path(text).is_file():
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


def _named(kind: str, rest: str, nodes: int) -> Graph | None:
    """Returns the graph of a kind that has a name; None for any other."""
    if kind in ("ring", "complete") and not rest:
        return {"ring": ring, "complete": complete}[kind](nodes)
    if kind == "grid":
        height, width = map(int, rest.split("x"))
        return grid(height, width)
    if kind == "regular":
        return random_regular(nodes, int(rest), seed=REGULAR)
    return None


def read(path: str) -> Graph:
    """Returns the graph of the file `path`: the two nodes of an edge on each line.

    Raises:
      ValueError: for a line of anything else, and as `from_edges`.
    """
    try:
        lines = pathlib.Path(path).read_text().splitlines()
        pairs = [tuple(map(int, line.split())) for line in lines if line.strip()]
        whole = all(len(pair) == 2 and max(map(abs, pair)) < 2**31 for pair in pairs)
    except ValueError:  # of text in another coding, too
        pairs, whole = [], False
    if not whole:
        msg = f"Expected two whole numbers on each line of {path}."
        raise ValueError(msg)
    return from_edges(pairs)


def ring(nodes: int) -> Graph:
    """The graph of `nodes` nodes with two neighbours each; of two nodes, with one."""
    validate.at_least_one(**{"nodes - 1": nodes - 1})
    _require_few(nodes)
    return from_edges([(node, (node + 1) % nodes) for node in range(nodes)])


def complete(nodes: int) -> Graph:
    """The graph of `nodes` nodes, each joined to all others."""
    validate.at_least_one(**{"nodes - 1": nodes - 1})
    _require_few(nodes)
    return from_edges(np.stack(np.triu_indices(nodes, 1), axis=1))


def grid(height: int, width: int) -> Graph:
    """The graph of `height` x `width` nodes joined to those beside, above and below."""
    validate.at_least_one(height=height, width=width)
    _require_few(height * width)
    number = np.arange(height * width).reshape(height, width)
    beside = np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()], 1)
    below = np.stack([number[:-1].ravel(), number[1:].ravel()], 1)
    return from_edges(np.concatenate([beside, below]))


@functools.cache  # of every point of a sweep, it is asked for anew
def random_regular(nodes: int, degree: int, *, seed: int) -> Graph:
    """A random graph in which each node has `degree` neighbours.

    Edges of a circulant graph exchange their ends, which keeps all degrees, until it
    is well mixed and connected.

    Args:
      nodes: the number of nodes.
      degree: the number of neighbours of each.
      seed: the seed of the exchanges.

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
        except ValueError:  # it fell into parts: go on
            continue


def distances(graph: Graph) -> np.ndarray:
    """Returns int [nodes, nodes], the hops between any two of `graph`."""
    return ways(graph)[0]


def ways(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Returns the shortest ways between any two nodes of `graph`.

    Returns:
      Hops, and the last node before the end: both int [nodes, nodes], of the way from
      the node of a row to that of a column. Nobody stands before the beginning.
    """
    hops, before = csgraph.shortest_path(
        _matrix(graph), unweighted=True, return_predecessors=True
    )
    return hops.astype(np.int64), before


def diameter(graph: Graph) -> int:
    """Returns the largest distance between two nodes of `graph`, in hops."""
    return int(distances(graph).max())


def links(graph: Graph, root: int) -> np.ndarray:
    """Returns a spanning tree of shortest ways to `root`, breadth first.

    Of several neighbours on such a way a node takes the one that was met first.

    Args:
      graph: the graph.
      root: the node that the tree hangs from.

    Returns:
      Pairs of a node and the next one on its way, int32 [nodes - 1, 2], nearer nodes
      before farther ones; fewer pairs, if the graph is in parts.
    """
    order, before = csgraph.breadth_first_order(_matrix(graph), root)
    return np.stack([order, before[order]], axis=1)[1:].astype(np.int32)


def _matrix(graph: Graph) -> sparse.csr_array:
    """Returns which nodes are joined, neighbours in the order of their numbers."""
    both = np.concatenate([graph.edges, graph.edges[:, ::-1]])
    shape = graph.nodes, graph.nodes
    return sparse.csr_array((np.ones(len(both)), both.T), shape=shape)


def _require_few(nodes: int) -> None:
    validate.at_most(MOST, "what is played on one machine", nodes=nodes)


def _edge(a: int, b: int) -> tuple[int, int]:
    return min(a, b), max(a, b)


def _swapped(edges: list[tuple[int, int]], random) -> set[tuple[int, int]]:
    """Returns edges (a, b), (c, d) exchanged for (a, d), (c, b), many times over."""
    present, edges = set(edges), list(edges)
    for _ in range(SWAPS * len(edges)):
        i, j = random.integers(len(edges), size=2)
        (a, b), (c, d) = edges[i], edges[j]
        if random.integers(2):
            c, d = d, c
        new = {_edge(a, d), _edge(c, b)}
        if len({a, b, c, d}) == 4 and not new & present:
            present -= {edges[i], edges[j]}  # in place: a copy is as long as all edges
            present |= new
            edges[i], edges[j] = new
    return present
