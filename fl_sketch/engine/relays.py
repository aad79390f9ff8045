"""How the sum of all messages comes to every node of a graph, and over which edges.

A flood hands on every message as it is: a node passes what it heard for the first time
in the last hop to all neighbours but those it came from. After as many hops as the
graph's diameter all have everything, and each adds it up for itself.

Only the sum is needed. On a spanning tree a node adds what its children send to its own
message and sends that on towards the root, from which the sum of all comes back: two
messages for every edge of the tree, and nothing over the others. The root is a node
from which the tree is as low as it can be, so that both ways take the fewest hops.

>>> line = graphs.named("grid:1x3", 3)
>>> flood(line).crossings.tolist()  # over 0 - 1 and back, over 1 - 2 and back
[[1, 2], [2, 1]]
>>> tree(line).crossings.tolist()
[[1, 1], [1, 1]]
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core.protocols import Message
from fl_sketch.core.trees import varying_like
from fl_sketch.core.wire import FLOAT_BITS, Chosen
from fl_sketch.engine import graph as graphs
from fl_sketch.engine.graph import Graph

ORIGIN_BYTES = 4  # with a flooded message goes the number of the node that made it


class Relay(NamedTuple):
    """A way of messages over a graph.

    Attributes:
      name: its name in `RELAYS`.
      graph: the graph.
      hops: the hops from the messages of an exchange to their sum at all nodes.
      crossings: the number of messages over each edge in an exchange, there and back,
        int64 [edges, 2].
      beside: bytes that travel with each of them.
      adds: whether messages are added up on their way.
      sums: `(messages) -> sums`, leaves [nodes, ...] of what each node has to say, and
        of what each node then has.
    """

    name: str
    graph: Graph
    hops: int
    crossings: np.ndarray
    beside: int
    adds: bool
    sums: Callable[[Message], Message]

    @property
    def sent(self) -> np.ndarray:
        """How many messages each node sends in an exchange, int64 [nodes]."""
        (a, b), (there, back) = self.graph.edges.T, self.crossings.T
        nodes = self.graph.nodes
        both = np.bincount(a, there, nodes) + np.bincount(b, back, nodes)
        return both.astype(np.int64)

    def over_edges(self, message: int, exchanges: int = 1) -> np.ndarray:
        """Returns the bytes that cross every edge, there and back, int64 [edges, 2].

        Args:
          message: the bytes of what one node has to say, in all exchanges.
          exchanges: the number of these.
        """
        return self.crossings * (message + exchanges * self.beside)

    def shared_out(self, total: int) -> np.ndarray:
        """Returns the bytes over every edge where `total` crossed all of them.

        All messages of an exchange have one length, so that edges share the bytes as
        they share the messages.
        """
        return self.crossings * (total // int(self.crossings.sum()))

    def require_sums(self, bits: int | Chosen | None, numbers: int) -> None:
        """Raises unless the messages may be sent over this relay at their own price.

        The sum of messages that are shorter than their numbers is not: of signs, say,
        or of a few values at places of each client's own.

        Args:
          bits: the length of a message on the wire; None: it depends on the round.
          numbers: the numbers that it stands for.

        Raises:
          ValueError: for messages that are added up on their way, and are no floats.
        """
        if self.adds and not (isinstance(bits, int) and bits == FLOAT_BITS * numbers):
            own = bits if isinstance(bits, int) else "a round's own number of"
            msg = (
                f"Expected messages of {FLOAT_BITS} bits a number, whose sums are as "
                f"long as they are, with relay={self.name}, got messages of {numbers} "
                f"numbers in {own} bits: take relay=flood."
            )
            raise ValueError(msg)


def flood(graph: Graph) -> Relay:
    """Returns the flood of all messages over `graph`.

    A node at distance h from an origin has its message after h hops. In the next hop,
    if there is one, it passes the message on to the neighbours that are not nearer to
    the origin. It cannot know that a neighbour as far as itself has it too.

    Every node adds up what it has heard in the order of the nodes' numbers, as a server
    does, so that all of them have the same sum to the last bit.
    """
    hops, before = graphs.ways(graph)
    order = np.argsort(hops, axis=1, kind="stable")[:, 1:]  # the near ones first
    links = np.stack([order, np.take_along_axis(before, order, axis=1)], axis=2)
    (a, b), last = graph.edges.T, int(hops.max())
    crossings = np.zeros((len(graph.edges), 2), np.int64)
    for far in hops:  # from one origin
        crossings[:, 0] += (far[b] >= far[a]) & (far[a] < last)
        crossings[:, 1] += (far[a] >= far[b]) & (far[b] < last)

    def sums(messages):
        def hear(totals, links):
            heard = _handed_on(messages, links)
            return jax.tree.map(jnp.add, totals, heard), None

        zeros = jax.tree.map(lambda m: varying_like(jnp.zeros_like(m), m), messages)
        return jax.lax.scan(hear, zeros, jnp.asarray(links, jnp.int32))[0]

    return Relay("flood", graph, last, crossings, ORIGIN_BYTES, False, sums)


def tree(graph: Graph) -> Relay:
    """Returns the relay of sums on a spanning tree of `graph`."""
    hops = graphs.distances(graph).max(axis=1)
    root = int(hops.argmin())
    links = graphs.links(graph, root)
    numbered = np.array([graph.nodes, 1])  # edges in their order
    at = np.searchsorted(graph.edges @ numbered, np.sort(links, axis=1) @ numbered)
    crossings = np.zeros((len(graph.edges), 2), np.int64)
    crossings[at] = 1

    def sums(messages):
        def add(table, link):
            child, parent = link

            def of_leaf(leaf):
                return _put(leaf, leaf[parent] + leaf[child], parent)

            return jax.tree.map(of_leaf, table), None

        table, _ = jax.lax.scan(add, messages, jnp.asarray(links[::-1]))
        return _handed_on(table, jnp.asarray(links))

    return Relay("tree", graph, 2 * int(hops[root]), crossings, 0, True, sums)


#: The ways of messages, each by its name.
RELAYS = {"flood": flood, "tree": tree}


def _handed_on(table: Message, links: jax.Array) -> Message:
    """Returns what every node has when each took over what its neighbour has."""

    def hand(table, link):
        node, source = link
        return jax.tree.map(lambda leaf: _put(leaf, leaf[source], node), table), None

    return jax.lax.scan(hand, table, links)[0]


def _put(leaf: jax.Array, row: jax.Array, place: jax.typing.ArrayLike) -> jax.Array:
    """Returns `leaf` with a row in place of another, where it lies."""
    return jax.lax.dynamic_update_index_in_dim(leaf, row, place, 0)
