"""What the messages of a round cost without a server (Song et al., section 4).

Messages reach all nodes of a graph in as many hops as its diameter. All nodes then have
the same mean, take the same step, and keep equal models that are never sent. Such a run
computes what a run with a server and everyone in the cohort does. Only its bytes
differ, and they are a function of the graph and of a message's bytes.

>>> line = edges_of("grid:1x3", 3)
>>> flood(line, 3), tree(line, 3)
(Crossings(messages=6, most=2, hops=2), Crossings(messages=4, most=1, hops=2))
"""

import pathlib
from typing import NamedTuple

import numpy as np

GRAPHS = "ring, grid:HEIGHTxWIDTH, complete or a file of edges"
ORIGIN_BYTES = 4  # a flooded message has the number of the node that made it


class Crossings(NamedTuple):
    """The messages of one exchange over a graph.

    Attributes:
      messages: over all edges.
      most: the most over one edge in one direction.
      hops: until all nodes have the sum.
    """

    messages: int
    most: int
    hops: int


def edges_of(text: str, nodes: int) -> np.ndarray:
    """Returns the edges of a connected graph that a flag names, int [edges, 2].

    Args:
      text: "ring", "complete", "grid:2x3", or a file with two nodes on each line.

    Raises:
      ValueError: in one line, for a text that names no such graph of so many nodes.
    """
    kind, _, rest = text.partition(":")
    try:
        number = np.arange(nodes)
        if text == "ring":
            pairs = np.stack([number, (number + 1) % nodes], 1)
        elif text == "complete":
            pairs = np.stack(np.triu_indices(nodes, 1), 1)
        elif kind == "grid":
            height, width = map(int, rest.split("x"))
            square = np.arange(height * width).reshape(height, width)
            right = np.stack([square[:, :-1].ravel(), square[:, 1:].ravel()], 1)
            below = np.stack([square[:-1].ravel(), square[1:].ravel()], 1)
            pairs = np.concatenate([right, below])
        else:
            lines = pathlib.Path(text).read_text().splitlines()
            pairs = [[*map(int, line.split())] for line in lines if line.strip()]
        edges = np.unique(np.sort(np.array(pairs, int).reshape(-1, 2), axis=1), axis=0)
    except (OSError, ValueError) as error:
        msg = f"graph must be {GRAPHS}, got graph={text}: {error}."
        raise ValueError(msg) from None
    edges = edges[edges[:, 0] != edges[:, 1]]
    found = edges.max(initial=0) + 1
    if found != nodes or edges.min(initial=0) < 0:
        msg = f"graph={text} has {found} nodes, but there are {nodes} clients."
        raise ValueError(msg)
    if not np.isfinite(_distances(edges, nodes)).all():
        msg = f"graph={text} is not connected."
        raise ValueError(msg)
    return edges


def flood(edges: np.ndarray, nodes: int) -> Crossings:
    """Counts the messages if every node passes on all that it has not yet sent.

    A node at distance h from an origin has its message after h hops. In the next hop it
    passes the message on to the neighbours that are not nearer to the origin. It cannot
    know that a neighbour at the same distance has it too.
    """
    hops = _distances(edges, nodes)
    (a, b), last = edges.T, hops.max()
    there = ((hops[:, b] >= hops[:, a]) & (hops[:, a] < last)).sum(0)
    back = ((hops[:, a] >= hops[:, b]) & (hops[:, b] < last)).sum(0)
    most = max(there.max(), back.max())
    return Crossings(int(there.sum() + back.sum()), int(most), int(last))


def tree(edges: np.ndarray, nodes: int) -> Crossings:
    """Counts the messages if sums go up a spanning tree to its root, and back.

    The root is the node from which the farthest one is nearest.
    """
    depth = _distances(edges, nodes).max(1).min()
    return Crossings(2 * (nodes - 1), 1, 2 * int(depth))


def _distances(edges: np.ndarray, nodes: int) -> np.ndarray:
    """Returns the hops between any two nodes; infinite without a path."""
    from scipy import sparse  # takes half a second to import
    from scipy.sparse import csgraph

    matrix = sparse.csr_array((np.ones(len(edges)), edges.T), shape=(nodes, nodes))
    return csgraph.shortest_path(matrix, directed=False, unweighted=True)
