"""A conversation: the programs of both sides of an algorithm, and what they send.

Both sides make it of the same algorithm and the same shapes, so that both know the
length of every message beforehand, and compare a digest of the programs. A site's
programs are its local work, one for each message, and the end of its round. The
coordinator's are one for each mean, and the server's step. Each is compiled once.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.channels import player
from fl_sketch.core.constants import as_argument, jitted, noted, trees_of
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
from fl_sketch.engine import costs, programs
from fl_sketch.engine.clients import Client, Fetch, zeros
from fl_sketch.engine.round import initial_server
from fl_sketch.network import layout
from fl_sketch.network.frames import DIGEST
from fl_sketch.network.known import Counts, Exchange, Heard
from fl_sketch.network.layout import Layout
from fl_sketch.privacy import integer_sums


class Conversation:
    """The programs of an algorithm for a model and batches of these shapes.

    Attributes:
      server, client: shapes of the states of the server and of a client.
      traffic: what one client sends and receives.
      exchanges: what is sent in each exchange.
      summands: shapes of what a client adds to the sum of each exchange.
      model: the layout of what clients read of the server.
    """

    server: Server
    client: Client
    traffic: costs.Traffic
    summands: tuple[Any, ...]
    exchanges: tuple[Exchange, ...]
    model: Layout

    def __init__(self, algorithm: Algorithm, params: Tree, batches: Any, fetch: Fetch):
        """Takes shapes of the model and of a client's batches in a round.

        Args:
          algorithm: the algorithm, with its mechanism.
          params: shapes of the model.
          batches: shapes of the batches of a client in a round.
          fetch: how a site draws them, of `engine.make_round`.

        Raises:
          TypeError, ValueError: in one line, for what no network can hold.
        """
        self.algorithm, self._fetch, self._batches = algorithm, fetch, batches
        start = jax.eval_shape(lambda p: initial_server(algorithm, p), params)
        self.server, self.client = start
        self.traffic = costs.measure_traffic(algorithm, params, batches)
        self._keys = jax.eval_shape(lambda: round_keys(jax.random.key(0), 0, 0))
        run = algorithm.local.run
        self._work = jax.eval_shape(
            run, self.server, self.client.local, batches, self._keys
        )
        one = jax.ShapeDtypeStruct((), np.float32)
        self._counts = Counts(one, one, one)
        self.exchanges = self._traced()
        server, read = self.server, self.traffic.read
        self._read = read._replace(
            params=jax.tree.map(lambda _: True, server.params), round=False
        )
        self.model = layout.of_leaves(self.of_model(server))
        self._compile()

    @functools.cached_property
    def digest(self) -> bytes:
        """A digest of a client's programs, apart from arrays that do not train."""
        means = tuple(one.mean for one in self.exchanges)
        heard = Heard(means, self._replies)

        def whole(server, client, batches, keys, counts, heard):
            work = self.algorithm.local.run(server, client.local, batches, keys)
            sent = [
                self._sent(e, server, client, work, keys, counts, self.until(e, heard))
                for e in range(len(self.exchanges))
            ]
            return sent, self._finished(server, client, work, keys, counts, heard)

        shapes = (self.server, self.client, self._batches, self._keys, self._counts)
        with noted() as found:
            jax.eval_shape(whole, *shapes, heard)
        frozen = jax.eval_shape(lambda: trees_of(found))  # on no device
        text = programs.digest(as_argument(whole, found), *shapes, heard, frozen)
        return bytes.fromhex(text)[:DIGEST]

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of what a client measures in its local work."""
        return tuple(self._work.diagnostics)

    @property
    def stateful(self) -> bool:
        """Whether a client keeps anything, so that it must hear how a round ended."""
        return bool(jax.tree.leaves(self.client))

    @property
    def remembers(self) -> bool:
        """Whether a client that dies in a round needs what it received in it."""
        return self.stateful or len(self.exchanges) > 1

    @property
    def masked(self) -> bool:
        """Whether messages are integers, which are added up under masks."""
        mechanism = self.algorithm.mechanism
        return bool(mechanism and mechanism.integers)

    @property
    def fewest(self) -> int:
        """The least number of clients of a mean; that of fewer is zero."""
        mechanism = self.algorithm.mechanism
        noise = math.ceil(mechanism.smallest) if mechanism else 0
        return max(noise, 2 if self.masked else 1)  # one is no sum

    @property
    def longest(self) -> int:
        """The bytes of the longest payload of a client."""
        return max(one.size for exchange in self.exchanges for one in exchange.up)

    def until(self, exchange: int, heard: Heard) -> Heard:
        """Returns what of `heard` is known before an exchange."""
        replies = sum(one.replies for one in self.exchanges[:exchange])
        return Heard(heard.means[:exchange], heard.replies[:replies])

    def of_model(self, server: Server) -> list[Any]:
        """Returns the leaves of a server that clients read, in order."""
        pairs = zip(jax.tree.leaves(server), jax.tree.leaves(self._read), strict=True)
        return [leaf for leaf, read in pairs if read]

    def with_model(self, leaves: Sequence[Any], number: int) -> Server:
        """Returns a server of these leaves before a round; others are zero."""
        given = iter(leaves)
        filled = [
            next(given) if read else np.zeros(shape.shape, shape.dtype)
            for shape, read in zip(
                jax.tree.leaves(self.server), jax.tree.leaves(self._read), strict=True
            )
        ]
        server = jax.tree.unflatten(jax.tree.structure(self.server), filled)
        return server._replace(round=np.int32(number))

    def heard_of(self, exchange: int, payload: bytes, before: Heard) -> Heard:
        """Returns what a client knows after a MEAN or an END with this payload."""
        one = self.exchanges[exchange]
        received = iter(one.down.unpack(payload))
        if not one.told:
            replies = (*before.replies, *received)
            return Heard((*before.means, zeros(one.mean)), replies)
        shapes, tree = jax.tree.flatten(one.mean)
        leaves = [
            next(received) if needed else jnp.zeros(shape.shape, shape.dtype)
            for shape, needed in zip(shapes, one.needed, strict=True)
        ]
        return Heard((*before.means, jax.tree.unflatten(tree, leaves)), before.replies)

    def told_of(self, exchange: int, mean: Any, replies: Sequence[Any]) -> bytes:
        """Returns the payload of a MEAN or an END, which `heard_of` reads."""
        one = self.exchanges[exchange]
        if not one.told:
            return one.down.pack(replies)
        pairs = zip(jax.tree.leaves(mean), one.needed, strict=True)
        return one.down.pack([leaf for leaf, needed in pairs if needed])

    def _traced(self) -> tuple[Exchange, ...]:
        """Returns what is sent, found by tracing the channel and the mechanism."""
        codes, counted, fields = list[Any](), list[int](), list[Any]()

        def played(server, client, work, keys, counts):
            means, summands, added = (), [], []
            while True:
                replies: list[Any] = []
                turn = self._turn(
                    server, client, work, keys, counts, Heard(means), replies.append
                )
                counted.append(len(replies))
                if turn.sent is None:
                    fields.extend(field for one in replies for field in one.fields)
                    return means, summands, tuple(added)
                heard = Heard(means, tuple(one.value for one in replies))
                codes.append(self._coded(turn.sent))
                sent = self._sent(len(means), server, client, work, keys, counts, heard)
                summands.append(sent[1][0])
                added.append(self._encoded(len(means), turn.sent, server, work, keys))
                means = (*means, player.message(turn.sent))

        arguments = self.server, self.client, self._work, self._keys, self._counts
        means, summands, self.summands = jax.eval_shape(played, *arguments)
        self._replies = layout.of_fields(fields).leaves
        needed, exchanges = self.traffic.needed, []
        told = any(jax.tree.leaves(needed))
        for number, mean in enumerate(means):
            flags = tuple(map(bool, jax.tree.leaves(needed[number])))
            pairs = zip(jax.tree.leaves(mean), flags, strict=True)
            first, last = counted[number : number + 2]
            down = layout.of_fields(fields[first:last])
            if told:
                down = layout.of_leaves([leaf for leaf, flag in pairs if flag])
            up = tuple(layout.of_fields(one) for one in codes[number])
            up = up or (self._plain(summands[number]),)
            exchanges.append(Exchange(up, mean, down, flags, last - first, told))
        return tuple(exchanges)

    def _plain(self, leaves: Sequence[Any]) -> Layout:
        """Returns the layout of a summand of a mechanism, or of a message."""
        mechanism = self.algorithm.mechanism
        if mechanism and mechanism.integers:
            (numbers,) = leaves
            field = Field(numbers.size, mechanism.integers.bits, "uint")
            return layout.of_fields([field])
        return layout.of_leaves(leaves, mechanism.trailing if mechanism else ())

    def _coded(self, yielded: Any) -> tuple[Any, ...]:
        """Returns the fields of each code of a message; of plain floats none."""
        if not isinstance(yielded, Coded):
            return ()
        name = player.name_of(self.algorithm.uplink)
        lengths = (
            yielded.bits.lengths
            if isinstance(yielded.bits, Chosen)
            else (yielded.bits,)
        )
        if len(yielded.codes) != len(lengths):
            msg = (
                f"Expected {name} to say how its messages are packed, with a code for "
                f"each of {len(lengths)} lengths, got {len(yielded.codes)} of them."
            )
            raise ValueError(msg)
        if self.algorithm.mechanism:
            msg = (
                f"Expected messages of floats where they are bounded, got those of "
                f"{name}, whose codes hold no bounded message."
            )
            raise ValueError(msg)
        return tuple(code.fields for code in yielded.codes)

    def _turn(self, server, client, work, keys, counts, heard, note=lambda _: None):
        """Returns how far a client's channel gets with what is known."""
        given = iter(heard.replies)

        def receive(reply):
            note(reply)
            return jax.tree.map(
                lambda leaf: _like(next(given, leaf), leaf), reply.value
            )

        arguments = work.update, Memory(client.memory, server.memory), keys
        known = (*arguments, self._round(server, counts))
        return player.play(self.algorithm.uplink, known, heard.means, receive=receive)

    def _blank_turn(self, server, keys, counts, heard, note=lambda _: None):
        """Returns the same for a client whose work and state are zeros."""
        work, client = zeros(self._work), zeros(self.client)
        return self._turn(server, client, work, keys, counts, heard, note)

    def _encoded(self, exchange: int, yielded, server, work, keys) -> Any:
        """Returns what a client adds to the sum, of a message of floats."""
        del work
        message, mechanism = player.message(yielded), self.algorithm.mechanism
        if mechanism is None:
            return message
        return mechanism.encode(server.guard, exchange, message, keys).summand

    def _round(self, server: Server, counts: Counts) -> Round:
        """Returns what a client's channel knows of the round."""
        mechanism, known = self.algorithm.mechanism, Round(server.round)
        if mechanism:
            known = known._replace(
                counted=lambda m: mechanism.bounded(server.guard, m).summand
            )
        return known._replace(**counts._asdict())

    def _sent(self, exchange, server, client, work, keys, counts, heard, own=None):
        """Returns which of its codes a message has, and the arrays of each.

        With `own`, its noise is of this key, and not of `keys`.
        """
        yielded = self._turn(server, client, work, keys, counts, heard).sent
        if isinstance(yielded, Coded):
            several = isinstance(yielded.bits, Chosen)
            which = yielded.bits.which if several else 0
            return which, tuple(code.arrays() for code in yielded.codes)
        noise = keys if own is None else keys._replace(own=own)
        message = self._encoded(exchange, yielded, server, work, noise)
        mechanism = self.algorithm.mechanism
        if mechanism and mechanism.integers:
            return 0, ((integer_sums.on_wire(mechanism, message),),)
        return 0, (tuple(jax.tree.leaves(message)),)

    def _summand(self, exchange, which, server, keys, counts, heard, arrays):
        """Returns what a message in its code `which` adds to the sum."""
        yielded = self._blank_turn(server, keys, counts, heard).sent
        if isinstance(yielded, Coded):
            return yielded.codes[which].expand(tuple(arrays))
        message = self._encoded(exchange, yielded, server, zeros(self._work), keys)
        return jax.tree.unflatten(jax.tree.structure(message), arrays)

    def _of_sum(self, server, keys, counts, heard, numbers, clients):
        """Returns what is released, of the sum of the integers of clients."""
        message = player.message(self._blank_turn(server, keys, counts, heard).sent)
        mechanism = self.algorithm.mechanism
        assert mechanism
        return integer_sums.from_wire(mechanism, numbers, message, clients)

    def _chosen(self, server, keys, counts, heard):
        """Returns which of its codes every next message has."""
        yielded = self._blank_turn(server, keys, counts, heard).sent
        several = isinstance(yielded, Coded) and isinstance(yielded.bits, Chosen)
        return yielded.bits.which if several else 0

    def _released(self, exchange, total, guard, keys, counts) -> Release:
        """Returns the mean of an exchange, of the sum over all clients."""
        mechanism = self.algorithm.mechanism
        if mechanism is None:
            mean = jax.tree.map(lambda leaf: leaf / counts.denominator, total)
            return Release(mean, guard, {})
        return mechanism.release(guard, exchange, total, keys)

    def _replied(self, server, keys, counts, means):
        """Returns the replies that the server sends up to the last known mean."""
        replies: list[Any] = []
        self._blank_turn(server, keys, counts, Heard(means), replies.append)
        return [leaf for one in replies for leaf in jax.tree.leaves(one.value)]

    def _served(self, server, guard, keys, counts, means) -> Server:
        """Returns the server after its step along the estimate."""
        work, client = zeros(self._work), zeros(self.client)
        plain = server._replace(guard=guard)
        memory = Memory(client.memory, server.memory)
        known = Round(server.round)._replace(**counts._asdict())
        turn = player.play(
            self.algorithm.uplink, (work.update, memory, keys, known), means
        )
        end = player.ended(self.algorithm.uplink, turn)
        after = plain._replace(memory=end.memory.server)
        return player.serve(self.algorithm, after, end.delivery.estimate, keys)

    def _finished(self, server, client, work, keys, counts, heard) -> Client:
        """Returns the state of a client after a round in which it counted."""
        turn = self._turn(server, client, work, keys, counts, heard)
        end = player.ended(self.algorithm.uplink, turn)
        state = self.algorithm.local.finish(work.state, end.delivery)
        return Client(state, end.memory.client)

    def _worked(self, server, client, data, keys) -> Work:
        """Returns the result of a client's local steps on its own data."""
        first = jnp.int32(0)
        batches = self._fetch(data, first, None, for_batches(keys))
        return self.algorithm.local.run(server, client.local, batches, keys)

    def _compile(self) -> None:
        """Makes the programs, which are compiled when they are first used."""
        self.work, self.finish = jitted(self._worked), jax.jit(self._finished)
        self.send = jax.jit(self._sent, static_argnums=0)
        self.summand = jax.jit(self._summand, static_argnums=(0, 1))
        self.of_sum = jax.jit(self._of_sum)
        self.choice = jax.jit(self._chosen)
        self.release = jax.jit(self._released, static_argnums=0)
        self.replied, self.serve = jax.jit(self._replied), jax.jit(self._served)
        self.add = jax.jit(_added)


def _added(total, weight, summand):
    """Returns a sum with one more summand; integers have weight one, and stay exact."""

    def leaf(one, other):
        exact = jnp.issubdtype(other.dtype, jnp.integer)
        return one + (other if exact else weight * other)

    return jax.tree.map(leaf, total, summand)


def _like(value: Any, leaf: Any) -> Any:
    return jnp.asarray(value).astype(leaf.dtype).reshape(leaf.shape)
