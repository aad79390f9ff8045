"""Relays: how the sum of all messages reaches every node of a graph.

Song et al., section 4: without a server, messages reach all nodes in as many hops as
the graph's diameter. All nodes then have the same mean, take the same step, and keep
equal models that are never sent. A round is thus the same as one with a server and
everyone in the cohort; a relay counts the messages over each edge.

A flood passes every message on as it is: a node sends what it received for the first
time in the last hop to all neighbours but those it came from. After as many hops as the
graph's diameter all nodes have all messages, and each adds them up.

Only the sum is needed. On a spanning tree, a node adds its children's messages to its
own and sends the sum to its parent. The total then returns from the root: two messages
for every edge of the tree, and none over other edges. The root is chosen so that the
tree is as low as possible and both directions take the fewest hops.

>>> line = graphs.named("grid:1x3", 3)
>>> flood(line).crossings.tolist()  # over 0 - 1 and back, over 1 - 2 and back
[[1, 2], [2, 1]]
>>> tree(line).crossings.tolist()
[[1, 1], [1, 1]]
"""

from typing import NamedTuple

import numpy as np

from fl_sketch.core.wire import FLOAT_BITS
from fl_sketch.engine import graph as graphs
from fl_sketch.engine.graph import Graph

ORIGIN_BYTES = 4  # a flooded message has the number of the node that made it


class Relay(NamedTuple):
    """A way of messages over a graph.

    Attributes:
      name: its name in `RELAYS`.
      hops: the hops from the messages of an exchange to their sum at all nodes.
      crossings: the number of messages over each edge in an exchange, there and back,
        int64 [edges, 2].
      extra: bytes that are added to each message.
      adds: whether messages are added up on their way.
    """

    name: str
    graph: Graph
    hops: int
    crossings: np.ndarray
    extra: int
    adds: bool

    @property
    def sent(self) -> np.ndarray:
        """The number of messages that each node sends in an exchange, int64 [nodes]."""
        (a, b), (there, back) = self.graph.edges.T, self.crossings.T
        nodes = self.graph.nodes
        both = np.bincount(a, there, nodes) + np.bincount(b, back, nodes)
        return both.astype(np.int64)

    def over_edges(self, message: int, exchanges: int = 1) -> np.ndarray:
        """Returns the bytes over every edge, there and back, int64 [edges, 2].

        The `message` has the bytes of one node's messages in all exchanges.
        """
        return self.crossings * (message + exchanges * self.extra)

    def shared_out(self, total: int) -> np.ndarray:
        """Returns the bytes over every edge, of the total over all edges.

        All messages of an exchange have one length, so that edges share the bytes as
        they share the messages.
        """
        return self.crossings * (total // int(self.crossings.sum()))

    def require_sums(self, bits: int | None, numbers: int) -> None:
        """Raises a ValueError unless a sum of messages is as long as each of them.

        It is longer where messages are shorter than 32 bits a number, such as signs, or
        a few values at coordinates that each client chooses.

        Args:
          bits: the length of a message on the wire; None: it depends on the round.
          numbers: the count of numbers that it represents.
        """
        if self.adds and not (isinstance(bits, int) and bits == FLOAT_BITS * numbers):
            length = bits if isinstance(bits, int) else "a varying number of"
            msg = (
                f"Expected messages of {FLOAT_BITS} bits per number, whose sums have "
                f"the same length, with relay={self.name}, got messages of {numbers} "
                f"numbers in {length} bits: use relay=flood."
            )
            raise ValueError(msg)


def flood(graph: Graph) -> Relay:
    """Returns the flood of all messages over a graph.

    A node at distance h from an origin has its message after h hops. In the next hop,
    if there is one, it passes the message on to the neighbours that are not nearer to
    the origin. It cannot know that a neighbour at the same distance has it too.
    """
    hops = graphs.distances(graph)
    (a, b), last = graph.edges.T, int(hops.max())
    crossings = np.zeros((len(graph.edges), 2), np.int64)
    for far in hops:  # from one origin
        crossings[:, 0] += (far[b] >= far[a]) & (far[a] < last)
        crossings[:, 1] += (far[a] >= far[b]) & (far[b] < last)
    return Relay("flood", graph, last, crossings, ORIGIN_BYTES, False)


def tree(graph: Graph) -> Relay:
    """Returns the relay of sums on a spanning tree of a graph."""
    hops = graphs.distances(graph).max(axis=1)
    root = int(hops.argmin())
    links = graphs.links(graph, root)
    numbered = np.array([graph.nodes, 1])  # edges in their order
    at = np.searchsorted(graph.edges @ numbered, np.sort(links, axis=1) @ numbered)
    crossings = np.zeros((len(graph.edges), 2), np.int64)
    crossings[at] = 1
    return Relay("tree", graph, 2 * int(hops[root]), crossings, 0, True)


RELAYS = {"flood": flood, "tree": tree}
