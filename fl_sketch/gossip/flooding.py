"""Rounds without a server: every node hears every message and does the rest itself.

Song et al., section 4: messages reach all nodes of a graph in as many hops as its
diameter. They are small, so they may be handed on as they are, and all nodes then
take the same mean and the same step. The models stay equal without ever being sent.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import talks
from fl_sketch.engine.round import State, initial_server
from fl_sketch.engine.visit import Client, Fetch, first
from fl_sketch.gossip import graph as graphs
from fl_sketch.gossip.graph import Graph
from fl_sketch.keys import for_batches, roots_of, round_keys
from fl_sketch.protocols import (
    Algorithm,
    Key,
    Keys,
    Memory,
    Message,
    Roots,
    Round,
    Tree,
    Work,
)


def initial_nodes(algorithm: Algorithm, params: Tree, nodes: int) -> State:
    """Returns the state before the first round, every node with a server of its own.

    Args:
      algorithm: the algorithm, as for a server.
      params: the same on all nodes, which all can make from one seed.
      nodes: the number of nodes.

    Raises:
      ValueError: under a mechanism: messages travel as they are, so none is guarded.
    """
    _require_open(algorithm)
    server, client = initial_server(algorithm, params)
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (nodes, *jnp.shape(leaf))) + 0,
        State(server, client),
    )


def make_gossip_round(
    algorithm: Algorithm, fetch: Fetch, graph: Graph
) -> Callable[[State, Key | Roots, Any], State]:
    """Returns `round(state, key, data) -> state`, not jitted; every node takes part.

    Formal guarantee, tested: every node has at all times what `make_round` with
    everyone in the cohort has at its server.

    Every exchange is a flooding: see `graph.bytes_over_edges` for its cost. The
    keys that a server would have for itself come from the public root, which all
    nodes know; those of a node alone from the secret one, which nobody else does.

    Args:
      algorithm: the work of clients and server.
      fetch: `(data, node, None, key) -> batches`.
      graph: the graph of the network.

    Raises:
      ValueError: under a mechanism.
    """
    _require_open(algorithm)

    def run(state: State, key: Key | Roots, data) -> State:
        play = _Play(algorithm, fetch, graph.nodes, data, roots_of(key))
        rows = *state, jnp.arange(graph.nodes, dtype=jnp.int32)
        works = jax.lax.map(play.work, rows)
        row, work = first((rows, works))
        means = ()
        while play.turn(row, work, first(means)).sent is not None:
            messages = jax.lax.map(play.message, (rows, works, means))
            mean = jax.lax.map(_mean, flooded(graph, messages))
            means += (jax.lax.optimization_barrier(mean),)
        return jax.lax.map(play.after, (rows, works, means))

    return run


class _Play(NamedTuple):
    """What a node does; its row are its server, what it keeps as a client, its number.

    The keys that a server would have for itself come from the public root.
    """

    algorithm: Algorithm
    fetch: Fetch
    nodes: int
    data: Any
    roots: Roots

    def keys(self, row) -> Keys:
        server, _, node = row
        open_to_all = round_keys(self.roots.public, server.round, node).server
        return round_keys(self.roots, server.round, node)._replace(server=open_to_all)

    def work(self, row) -> Work:
        server, client, node = row
        keys = self.keys(row)
        batches = self.fetch(self.data, node, None, for_batches(keys))
        return self.algorithm.local.run(server, client.local, batches, keys)

    def turn(self, row, work: Work, means) -> talks.Turn:
        server, client, _ = row
        memory = Memory(client.memory, server.memory)
        everyone = Round(
            server.round,
            denominator=self.nodes,
            present=self.nodes,
            population=self.nodes,
        )
        arguments = work.update, memory, self.keys(row), everyone
        return talks.play(self.algorithm.uplink, arguments, means)

    def message(self, row_work_means) -> Message:
        return talks.message(self.turn(*row_work_means).sent)

    def after(self, row_work_means) -> State:
        row, work, _ = row_work_means
        end = talks.ended(self.algorithm.uplink, self.turn(*row_work_means))
        server = row[0]._replace(memory=end.memory.server)
        server = talks.serve(
            self.algorithm, server, end.delivery.estimate, self.keys(row)
        )
        local = self.algorithm.local.finish(work.state, end.delivery)
        return State(server, Client(local, end.memory.client))


def flooded(graph: Graph, messages: Message) -> Message:
    """Returns what every node holds at the end: leaves [nodes, origins, ...].

    Hop by hop, a node takes a message from a neighbour that has it already.

    Args:
      graph: the graph of the network.
      messages: the messages, one for each node, along a leading axis.
    """
    hops, origins = graphs.distances(graph), np.arange(graph.nodes)
    nearer = hops[None] == hops[:, None] - 1  # node, neighbour, origin
    source = np.argmax(nearer & graphs.neighbours(graph)[..., None], axis=1)

    def of_leaf(leaf):
        def when(held, yes, no):
            return jnp.where(held.reshape(held.shape + (1,) * (leaf.ndim - 1)), yes, no)

        table = when(hops == 0, leaf[None], jnp.zeros_like(leaf)[None])
        for hop in range(1, graphs.diameter(graph) + 1):
            table = when(hops == hop, table[source, origins], table)
        return table

    return jax.tree.map(of_leaf, messages)


def _require_open(algorithm: Algorithm) -> None:
    """Raises for what would look private and is not: all nodes see all messages."""
    if algorithm.mechanism is not None:
        msg = (
            "Expected an algorithm without a mechanism on a graph, where every message "
            "is handed on as it is and only a mean could be guarded."
        )
        raise ValueError(msg)


def _mean(held: Message) -> Message:
    """Returns the mean over origins, added up one after the other as a server does."""
    origins = jnp.float32(jax.tree.leaves(held)[0].shape[0])
    origins = jax.lax.optimization_barrier(origins)  # divided, not times 1/n

    def of_leaf(leaf):
        total, _ = jax.lax.scan(
            lambda total, one: (total + one, None), jnp.zeros_like(leaf[0]), leaf
        )
        return total / origins

    return jax.tree.map(of_leaf, held)
