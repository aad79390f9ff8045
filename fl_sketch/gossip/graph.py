"""Networks without a server: who talks to whom, and what flooding costs.

Every node's message is flooded: a node hands on what it heard for the first time in
the last hop to all neighbours but those it came from. After as many hops as the
graph's diameter all have everything. Runs on the host.

>>> line = from_edges([(0, 1), (1, 2)])
>>> diameter(line)
2
>>> crossings(line).tolist()  # over 0 - 1 and back, over 1 - 2 and back
[[1, 2], [2, 1]]
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fl_sketch import validate

ORIGIN_BYTES = 4  # with each message goes the number of the node that made it
SWAPS = 10  # an edge, on average, when a random regular graph is made


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
      ValueError: for no edge, a node joined to itself, or a graph in parts.
    """
    pairs = np.sort(np.asarray(edges, np.int64).reshape(-1, 2), axis=1)
    if not len(pairs) or pairs.min() < 0 or (pairs[:, 0] == pairs[:, 1]).any():
        msg = f"Expected edges between two nodes >= 0 each, got edges={edges!r:.60}."
        raise ValueError(msg)
    graph = Graph(int(pairs.max()) + 1, np.unique(pairs, axis=0).astype(np.int32))
    missing = int((distances(graph)[0] < 0).sum())
    if missing:
        msg = f"Expected a connected graph, got {missing} nodes out of reach of node 0."
        raise ValueError(msg)
    return graph


def read(path: str) -> Graph:
    """Returns the graph of the file `path`: the two nodes of an edge on each line.

    Raises:
      ValueError: for a line of anything else, and as `from_edges`.
    """
    lines = pathlib.Path(path).read_text().splitlines()
    try:
        pairs = [tuple(map(int, line.split())) for line in lines if line.strip()]
        whole = all(len(pair) == 2 for pair in pairs)
    except ValueError:
        pairs, whole = [], False
    if not whole:
        msg = f"Expected two whole numbers on each line of {path}."
        raise ValueError(msg)
    return from_edges(pairs)


def ring(nodes: int) -> Graph:
    """The graph of `nodes` nodes with two neighbours each; of two nodes, with one."""
    validate.at_least_one(**{"nodes - 1": nodes - 1})
    return from_edges([(node, (node + 1) % nodes) for node in range(nodes)])


def grid(height: int, width: int) -> Graph:
    """The graph of `height` x `width` nodes joined to those beside, above and below."""
    validate.at_least_one(height=height, width=width)
    number = np.arange(height * width).reshape(height, width)
    beside = np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()], 1)
    below = np.stack([number[:-1].ravel(), number[1:].ravel()], 1)
    return from_edges(np.concatenate([beside, below]))


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
    """Returns int [nodes, nodes], the hops between any two of `graph`; -1: no way."""
    found = np.full((graph.nodes, graph.nodes), -1)
    np.fill_diagonal(found, 0)
    near = neighbours(graph)
    for hop in range(1, graph.nodes):
        # Counts of ways, as floats: products of integer matrices are slow.
        reached = (near.astype(np.float32) @ (found == hop - 1)) > 0
        new = reached & (found < 0)
        if not new.any():
            break
        found[new] = hop
    return found


def diameter(graph: Graph) -> int:
    """Returns the largest distance between two nodes of `graph`, in hops."""
    return int(distances(graph).max())


def neighbours(graph: Graph) -> np.ndarray:
    """Returns bool [nodes, nodes], which nodes of `graph` are joined."""
    near = np.zeros((graph.nodes, graph.nodes), bool)
    first, second = graph.edges.T
    near[first, second] = near[second, first] = True
    return near


def crossings(graph: Graph) -> np.ndarray:
    """Returns int [edges, 2]: how many messages cross an edge, there and back.

    A node at distance h from an origin has its message after h hops. In the next hop,
    if there is one, it passes the message on to the neighbours that are not nearer to
    the origin. It cannot know that a neighbour as far as itself has it too.

    Args:
      graph: the graph, in which each node's message is flooded once.
    """
    hops, last = distances(graph), diameter(graph)
    a, b = graph.edges.T

    def over(sender, receiver):
        sends = (hops[receiver] >= hops[sender]) & (hops[sender] < last)
        return sends.sum(axis=1)

    return np.stack([over(a, b), over(b, a)], axis=1)


def bytes_over_edges(graph: Graph, message: int) -> np.ndarray:
    """Returns int64 [edges, 2], the bytes that cross every edge in one flooding.

    Args:
      graph: the graph of the network.
      message: bytes of one node's message.
    """
    return crossings(graph).astype(np.int64) * (message + ORIGIN_BYTES)


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
            present = present - {edges[i], edges[j]} | new
            edges[i], edges[j] = new
    return present
