"""The programs of both sides of an algorithm, and the layouts of what they send.

Both sides make them of the same algorithm and the same shapes. A client's part of a
round is a generator (`Channel.protocol`). A site plays it up to the message that it is
asked for; the coordinator plays it on zeros, to know what a message adds to the sum.
Each program is compiled once.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.channels import player
from fl_sketch.core.constants import jitted
from fl_sketch.core.keys import for_batches, round_keys
from fl_sketch.core.protocols import (
    Algorithm,
    Coded,
    Field,
    Memory,
    Release,
    Round,
    Server,
    Tree,
    Work,
)
from fl_sketch.core.wire import Chosen
from fl_sketch.engine.clients import Client, Fetch, zeros
from fl_sketch.engine.costs import Traffic
from fl_sketch.engine.round import initial_server
from fl_sketch.network import messages
from fl_sketch.network.messages import Layout
from fl_sketch.privacy import integer_sums

ONE = jax.ShapeDtypeStruct((), np.float32)


class Counts(NamedTuple):
    """How the clients of a round count, float32 each: see `protocols.Round`."""

    denominator: Any
    present: Any
    population: Any


class Exchange(NamedTuple):
    """What is sent in one exchange: layouts, and shapes of the mean and a summand.

    A client's message has one of the layouts in a round.
    """

    up: tuple[Layout, ...]
    down: Layout
    mean: Any
    summand: Any


class Programs:
    """The programs of an algorithm for a model and batches of these shapes.

    Attributes:
      server, client, worked: shapes of both states, and of a client's work.
      exchanges: what is sent in each exchange.
      model: the layout of what clients read of the server.
      longest: the bytes of the longest payloads: of a client, and for it.
      masked: whether messages are integers, which are added up under masks.
      noisy, own_noise: whether there is noise, and whether clients add it.
      stateful: whether a client keeps anything, and must know how a round ended.
      fewest: the least number of clients of a mean; that of fewer is zero.
    """

    server: Server
    client: Client

    def __init__(self, algorithm: Algorithm, params: Tree, batches: Any, fetch: Fetch,
                 traffic: Traffic):  # fmt: skip
        """Takes shapes of the model and of a client's batches, and a client's traffic.

        Batches are drawn by `fetch`, as `engine.make_round` has it.
        """
        self.algorithm, self._fetch = algorithm, fetch
        start = jax.eval_shape(lambda p: initial_server(algorithm, p), params)
        (self.server, self.client), run = start, algorithm.local.run
        self._keys = jax.eval_shape(lambda: round_keys(jax.random.key(0), 0, 0))
        self.worked: Work = jax.eval_shape(
            run, self.server, self.client.local, batches, self._keys
        )
        read = traffic.read._replace(
            params=jax.tree.map(lambda _: True, self.server.params), round=False
        )
        if traffic.bits_reply:  # clients make the server's replies of means themselves
            all_of_it = jax.tree.map(lambda _: True, self.server.memory)
            read = read._replace(memory=all_of_it)
        self._read = jax.tree.leaves(read)
        self.model = messages.of_leaves(self.of_model(self.server))
        mechanism: Any = algorithm.mechanism
        self.masked = bool(mechanism and mechanism.integers)
        self.noisy = bool(mechanism and mechanism.noise_multiplier)
        self.own_noise = self.noisy and bool(mechanism.smallest)
        self.stateful = bool(jax.tree.leaves(self.client))
        least = math.ceil(mechanism.smallest) if mechanism else 0
        self.fewest = max(least, 2 if self.masked else 1)  # one is no sum
        self.exchanges = self._traced()
        up = max(one.size for exchange in self.exchanges for one in exchange.up)
        down = (one.down.size for one in self.exchanges)
        self.longest = up, max(self.model.size, *down)
        self.work, self.finish = jitted(self._worked), jax.jit(self._finished)
        self.send = jax.jit(self._sent, static_argnums=0)
        self.summand = jax.jit(self._summand, static_argnums=(0, 1))
        self.of_sum, self.choice = jax.jit(self._of_sum), jax.jit(self._chosen)
        self.release = jax.jit(self._released, static_argnums=0)
        self.serve = jax.jit(self._served)
        self.add = jax.jit(lambda *sums: jax.tree.map(jnp.add, *sums))

    def of_model(self, server: Server) -> list[Any]:
        """Returns the leaves of a server that clients read, in order."""
        pairs = zip(jax.tree.leaves(server), self._read, strict=True)
        return [leaf for leaf, read in pairs if read]

    def with_model(self, leaves: Sequence[Any], number: int) -> Server:
        """Returns a server of these leaves before a round; others are zero."""
        given, shapes = iter(leaves), jax.tree.leaves(self.server)
        filled = [
            next(given) if read else np.zeros(shape.shape, shape.dtype)
            for shape, read in zip(shapes, self._read, strict=True)
        ]
        server = jax.tree.unflatten(jax.tree.structure(self.server), filled)
        return server._replace(round=np.int32(number))

    def mean_in(self, exchange: int, payload: bytes) -> Any:
        """Returns the mean of an exchange in foreign bytes."""
        one = self.exchanges[exchange]
        leaves = one.down.unpack(payload)
        return jax.tree.unflatten(jax.tree.structure(one.mean), leaves)

    def _traced(self) -> tuple[Exchange, ...]:
        """Returns the messages, found by tracing the channel and the mechanism."""
        exchanges, codes = list[Exchange](), list[tuple]()
        uplink, mechanism = self.algorithm.uplink, self.algorithm.mechanism

        def played(server, client, work, keys, counts):
            means, summands, sent = (), [], []
            while True:
                state = server, client, work, keys, counts
                yielded = self._turn(*state, means).sent
                if yielded is None:
                    return means, summands, sent
                if coded := isinstance(yielded, Coded):
                    several = isinstance(yielded.bits, Chosen)
                    ways = len(yielded.bits.lengths) if several else 1
                    if len(yielded.codes) != ways or mechanism:
                        name = player.name_of(uplink)
                        msg = f"Expected codes of {name}, and no mechanism with them."
                        raise ValueError(msg)
                codes.append(tuple(c.fields for c in yielded.codes) if coded else ())
                sent.append(self._sent(len(means), *state, means)[1][0])
                summands.append(self._encoded(len(means), yielded, server, keys))
                means = (*means, player.message(yielded))

        shapes = self.server, self.client, self.worked, self._keys
        traced = jax.eval_shape(played, *shapes, Counts(ONE, ONE, ONE))
        for mean, summand, sent, fields in zip(*traced, codes, strict=True):
            up = tuple(map(messages.of_fields, fields))
            if not up and mechanism and mechanism.integers:
                field = Field(sent[0].size, mechanism.integers.bits, "uint")
                up = (messages.of_fields([field]),)
            down = messages.of_leaves(jax.tree.leaves(mean))
            up = up or (messages.of_leaves(sent),)
            exchanges.append(Exchange(up, down, mean, summand))
        return tuple(exchanges)

    def _turn(self, server, client, work, keys, counts, means) -> player.Turn:
        """Returns how far a client's channel gets with these means."""
        known = Round(server.round, **counts._asdict())
        if mechanism := self.algorithm.mechanism:
            known = known._replace(
                counted=lambda m: mechanism.bounded(server.guard, m).summand
            )
        memory = Memory(client.memory, server.memory)
        arguments = work.update, memory, keys, known
        return player.play(self.algorithm.uplink, arguments, means)

    def _blank(self, server, keys, counts, means) -> Any:
        """Returns the next message of a client whose work and state are zeros."""
        client, work = zeros(self.client), zeros(self.worked)
        return self._turn(server, client, work, keys, counts, means).sent

    def _encoded(self, exchange: int, yielded, server, keys) -> Any:
        """Returns a client's summand of a message of its channel."""
        message, mechanism = player.message(yielded), self.algorithm.mechanism
        if mechanism is None:
            return message
        return mechanism.encode(server.guard, exchange, message, keys).summand

    def _sent(self, exchange, server, client, work, keys, counts, means, noise=None):
        """Returns which of its codes a message has, and the arrays of each.

        With the key `noise`, the mechanism draws from it, and not from `keys`.
        """
        yielded = self._turn(server, client, work, keys, counts, means).sent
        if isinstance(yielded, Coded):
            several = isinstance(yielded.bits, Chosen)
            which = yielded.bits.which if several else 0
            return which, tuple(code.arrays() for code in yielded.codes)
        keys = keys if noise is None else keys._replace(own=noise)
        message = self._encoded(exchange, yielded, server, keys)
        mechanism = self.algorithm.mechanism
        if mechanism and mechanism.integers:
            return 0, ((integer_sums.on_wire(mechanism, message),),)
        return 0, (tuple(jax.tree.leaves(message)),)

    def _summand(self, exchange, which, server, keys, counts, means, arrays):
        """Returns the summand of a message in its code `which`."""
        yielded = self._blank(server, keys, counts, means)
        if isinstance(yielded, Coded):
            return yielded.codes[which].expand(tuple(arrays))
        like = self.exchanges[exchange].summand
        return jax.tree.unflatten(jax.tree.structure(like), arrays)

    def _of_sum(self, server, keys, counts, means, numbers, clients):
        """Returns the release of a sum of clients' integers."""
        message = player.message(self._blank(server, keys, counts, means))
        mechanism: Any = self.algorithm.mechanism
        return integer_sums.from_wire(mechanism, numbers, message, clients)

    def _chosen(self, server, keys, counts, means):
        """Returns which of its codes every next message has."""
        yielded = self._blank(server, keys, counts, means)
        several = isinstance(yielded, Coded) and isinstance(yielded.bits, Chosen)
        return yielded.bits.which if several else 0

    def _released(self, exchange, total, guard, keys, counts) -> Release:
        """Returns the mean of an exchange, of the sum over all clients."""
        mechanism = self.algorithm.mechanism
        if mechanism is None:
            mean = jax.tree.map(lambda leaf: leaf / counts.denominator, total)
            return Release(mean, guard, {})
        return mechanism.release(guard, exchange, total, keys)

    def _served(self, server, guard, keys, counts, means) -> Server:
        """Returns the server after its step along the estimate."""
        memory = Memory(zeros(self.client).memory, server.memory)
        known, uplink = Round(server.round, **counts._asdict()), self.algorithm.uplink
        arguments = zeros(self.worked).update, memory, keys, known
        end = player.ended(uplink, player.play(uplink, arguments, means))
        after = server._replace(guard=guard, memory=end.memory.server)
        return player.serve(self.algorithm, after, end.delivery.estimate, keys)

    def _finished(self, server, client, work, keys, counts, means) -> Client:
        """Returns the state of a client after a round in which it counted."""
        turn = self._turn(server, client, work, keys, counts, means)
        end = player.ended(self.algorithm.uplink, turn)
        state = self.algorithm.local.finish(work.state, end.delivery)
        return Client(state, end.memory.client)

    def _worked(self, server, client, data, keys) -> Work:
        """Returns the result of a client's local steps on its own data."""
        batches = self._fetch(data, jnp.int32(0), None, for_batches(keys))
        return self.algorithm.local.run(server, client.local, batches, keys)
