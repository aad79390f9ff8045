"""Rounds without a server: every node hears the mean and does the rest itself.

Song et al., section 4: messages reach all nodes of a graph in as many hops as its
diameter. They are small, so they may be handed on, one by one or added up, and all
nodes then have the same mean and take the same step. The models stay equal without
ever being sent.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from fl_sketch.channels import player
from fl_sketch.core import validate
from fl_sketch.core.keys import for_batches, roots_of, round_keys
from fl_sketch.core.protocols import (
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
from fl_sketch.core.wire import traced_bytes
from fl_sketch.engine.clients import Client, Fetch, first, zeros
from fl_sketch.engine.exchange import as_heard
from fl_sketch.engine.graph import Graph
from fl_sketch.engine.mesh import AXIS, mesh_over
from fl_sketch.engine.mesh import rows as rows_of
from fl_sketch.engine.relays import RELAYS, Relay
from fl_sketch.engine.round import Report, SimulatorOnly, State, initial_server


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
        lambda leaf: jnp.copy(jnp.broadcast_to(leaf, (nodes, *jnp.shape(leaf)))),
        State(server, client),
    )


def make_gossip_round(
    algorithm: Algorithm,
    fetch: Fetch,
    graph: Graph,
    mesh: jax.sharding.Mesh | None = None,
    *,
    relay: str = "flood",
    chunk: int = 1,
) -> Callable[[State, Key | Roots, Any], tuple[State, Report]]:
    """Returns `round(state, key, data) -> (state, report)`, not jitted.

    Every node takes part. Its servers and clients are those of `initial_nodes`. The
    keys that a server would have for itself come from the public root, which all nodes
    know; those of a node alone from the secret one, which nobody else does.

    Formal guarantees, tested:

    - all nodes have the same server at all times, to the last bit;
    - by a flood it is the server that `make_round` with everyone in the cohort has, if
      that one adds up messages and not what they are sketches of: to the last bit,
      where both are compiled alike;
    - by a tree, which adds up in another order, within the rounding of float32.

    Args:
      algorithm: the work of clients and server.
      fetch: `(data, node, None, key) -> batches`.
      graph: the graph of the network.
      mesh: devices along the axis "clients", which share the nodes; None: one.
      relay: the way of messages to all nodes, one of `relays.RELAYS`.
      chunk: the number of nodes whose local work a device does at a time, by vmap.

    Raises:
      ValueError: under a mechanism, for a relay that there is not, and as soon as the
        round is traced for messages that a relay cannot add up.
    """
    _require_open(algorithm)
    validate.one_of(tuple(RELAYS), relay=relay)
    validate.at_least_one(chunk=chunk)
    way, nodes = RELAYS[relay](graph), graph.nodes
    mesh = mesh or mesh_over(jax.devices()[:1])

    def on_device(rows, roots, data):
        play = _Play(algorithm, fetch, way, data, roots)
        return play.round(rows, chunk)

    same, own = P(), P(AXIS)
    sharded = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(own, same, same),
        out_specs=own,
        axis_names={AXIS},
    )
    numbers, across = jnp.arange(nodes, dtype=jnp.int32), rows_of(mesh)

    def run(state: State, key: Key | Roots, data) -> tuple[State, Report]:
        rows = jax.tree.map(lambda leaf: _filled(leaf, across), (*state, numbers))
        played = sharded(rows, roots_of(key), data)
        state, sizes, found = jax.tree.map(lambda leaf: leaf[:nodes], played)
        seen = SimulatorOnly(
            clients=numbers,
            answered=jnp.ones(nodes, bool),
            bytes_up=sizes,
            bytes_told=traced_bytes(0),
            diagnostics=jax.tree.map(lambda each: jnp.sum(each) / nodes, found),
        )
        return state, Report({}, seen)

    return run


class _Play(NamedTuple):
    """What nodes do.

    A node's row has its server, what it keeps as a client, and its number. The keys
    that a server would have for itself come from the public root.
    """

    algorithm: Algorithm
    fetch: Fetch
    relay: Relay
    data: Any
    roots: Roots

    def round(self, rows, chunk: int):
        """Returns what a device's nodes have in the end, and what is to be reported."""
        at_once = chunk if chunk > 1 else None  # a batch of one is batched all the same
        works = jax.lax.map(self.work, rows, batch_size=at_once)
        row, work = first((rows, works))
        means = ()
        while (sent := self.turn(row, work, first(means)).sent) is not None:
            self.require_sums(sent)
            messages = jax.lax.map(self.message, (rows, works, means))
            all_ = jax.lax.all_gather(messages, AXIS, tiled=True)
            all_ = jax.tree.map(lambda leaf: leaf[: self.relay.graph.nodes], all_)
            means += (self.mean(self.relay.sums(all_), rows),)
        after = jax.lax.map(self.after, (rows, works, means))
        return *after, works.diagnostics

    def mean(self, sums: Message, rows) -> Message:
        """Returns the means that the device's nodes make of the sums of all nodes."""
        server, _, ids = rows
        own = jax.tree.map(lambda leaf: leaf[ids] / self.relay.graph.nodes, sums)
        return as_heard(own, server.round[0])

    def require_sums(self, sent: Any) -> None:
        like = zeros(jax.eval_shape(lambda: player.message(sent)))
        bits = player.bits_of(sent, like)
        numbers = sum(leaf.size for leaf in jax.tree.leaves(like))
        self.relay.require_sums(bits, numbers)

    def keys(self, row) -> Keys:
        server, _, node = row
        open_to_all = round_keys(self.roots.public, server.round, node).server
        return round_keys(self.roots, server.round, node)._replace(server=open_to_all)

    def work(self, row) -> Work:
        server, client, node = row
        keys = self.keys(row)
        batches = self.fetch(self.data, node, None, for_batches(keys))
        return self.algorithm.local.run(server, client.local, batches, keys)

    def turn(self, row, work: Work, means) -> player.Turn:
        server, client, _ = row
        memory = Memory(client.memory, server.memory)
        nodes = self.relay.graph.nodes
        everyone = Round(
            server.round, denominator=nodes, present=nodes, population=nodes
        )
        arguments = work.update, memory, self.keys(row), everyone
        return player.play(self.algorithm.uplink, arguments, means)

    def message(self, row_work_means) -> Message:
        """Returns a node's message; sums of any floats are float32."""
        message = player.message(self.turn(*row_work_means).sent)
        return jax.tree.map(
            lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)),
            message,
        )

    def after(self, row_work_means):
        """Returns the state of a node after the round, and the bytes that it sent.

        They include what it handed on, and what goes with messages on their ways.
        """
        row, work, means = row_work_means
        end = player.ended(self.algorithm.uplink, self.turn(*row_work_means))
        server = row[0]._replace(memory=end.memory.server)
        server = player.serve(
            self.algorithm, server, end.delivery.estimate, self.keys(row)
        )
        local = self.algorithm.local.finish(work.state, end.delivery)
        more, sent = len(means) * self.relay.beside, self.relay.sent
        sizes = traced_bytes(end.bits_up, lambda size: (size + more) * sent)
        return State(server, Client(local, end.memory.client)), sizes[row[2]]


def _filled(leaf: jax.Array, devices: int) -> jax.Array:
    """Returns rows that share out evenly: the last node is played again if need be."""
    missing = -len(leaf) % devices
    if not missing:
        return leaf
    return jnp.concatenate([leaf, jnp.repeat(leaf[-1:], missing, axis=0)])


def _require_open(algorithm: Algorithm) -> None:
    """Raises for what would look private and is not: all nodes see all messages."""
    if algorithm.mechanism is not None:
        msg = (
            "Expected an algorithm without a mechanism on a graph, where every message "
            "is handed on as it is and only a mean could be guarded."
        )
        raise ValueError(msg)
