"""The clients of one device: they work in chunks, and their messages are added up."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from fl_sketch.core.keys import for_batches, of_client
from fl_sketch.core.protocols import (
    Algorithm,
    Channel,
    Encoded,
    Key,
    Keys,
    Memory,
    Message,
    Release,
    Round,
    Server,
    Work,
)
from fl_sketch.core.trees import varying_like
from fl_sketch.engine.cohort import LEAST

Fetch = Callable[[Any, jax.Array, Any, Key], Any]


class Client(NamedTuple):
    """The state of a client between rounds: of its `local` work, and of the channel."""

    local: Any
    memory: Any


class Slot(NamedTuple):
    """A place of a cohort, with the state and the `id` of the client that has it.

    The `plan` is what the caller has for this place, or None. With a leading axis, all
    places.
    """

    client: Client
    id: jax.Array
    plan: Any


class DeviceRound(NamedTuple):
    """One round as one device plays it for its clients.

    Without a mechanism a message is its own summand, and the mean is the weighted sum
    over the cohort's denominator. With a mechanism, `encode` makes a client's summand,
    `release` makes what all may see of the sum, and all clients count alike.

    Attributes:
      server: the server before the round, marked as varying over devices.
      weights: the weights of the device's clients, float32; with a mechanism 0 or 1.
      present: the sum of the weights over all devices.
      chunk: the number of clients that work at a time.
    """

    algorithm: Algorithm
    server: Server
    fetch: Fetch
    data: Any
    of_round: Keys
    weights: jax.Array
    present: jax.Array
    round: Round
    chunk: int

    def keys(self, client: jax.typing.ArrayLike) -> Keys:
        """Returns the keys of a client in this round."""
        return of_client(self.of_round, client)

    def work(self, slot: Slot) -> Work:
        """Returns the result of a client's local steps."""
        keys = self.keys(slot.id)
        batches = self.fetch(self.data, slot.id, slot.plan, for_batches(keys))
        local = self.algorithm.local
        return local.run(self.server, slot.client.local, batches, keys)

    def turn(self, slot: Slot, work: Work, round: Round) -> tuple[Channel, tuple]:
        """Returns the channel and its arguments, for `player.play`."""
        memory = Memory(slot.client.memory, self.server.memory)
        return self.algorithm.uplink, (work.update, memory, self.keys(slot.id), round)

    def encode(self, exchange: int, message: Message, slot: Slot) -> Encoded:
        """Returns a client's summand of an exchange."""
        mechanism = self.algorithm.mechanism
        if mechanism is None:
            return Encoded(jax.tree.map(_as_float, message), ())
        guard, keys = self.server.guard, self.keys(slot.id)
        return mechanism.encode(guard, exchange, message, keys)

    def release(self, exchange: int, total: Encoded, state: Any) -> Release:
        """Returns the mean of an exchange, of the total over all devices."""
        mechanism = self.algorithm.mechanism
        if mechanism is None:
            denominator = self.round.denominator
            return Release(
                jax.tree.map(lambda t: t / denominator, total.summand), state, {}
            )
        released = mechanism.release(state, exchange, total.summand, self.keys(0))
        return released._replace(facts=released.facts | {"rejected": total.rejected})

    def mean_diagnostics(self, sums: dict, rejected: Any) -> dict:
        """Returns means over the clients that took part and were not rejected."""
        if self.algorithm.mechanism:
            counted = jnp.maximum(self.present - rejected, LEAST)
            return jax.tree.map(lambda total: total / counted, sums)
        denominator = self.round.denominator  # whose rounding the scale takes back
        scale = denominator / jnp.maximum(self.present, LEAST)
        return jax.tree.map(lambda total: total / denominator * scale, sums)

    def each(self, function: Callable, *arguments: Any) -> tuple[Any, Any]:
        """Returns the weighted sum of first results, and all second results.

        Args:
          function: a function of one client's slices of the arguments that returns a
            pair.
          *arguments: trees with a leading axis of clients.
        """
        chunks, chunk = self.weights.size // self.chunk, self.chunk

        def in_chunks(leaf):
            return leaf.reshape(chunks, chunk, *leaf.shape[1:])

        def of_chunk(weights, arguments):
            if chunk == 1:  # without vmap, which batches convolutions badly on a CPU
                value, kept = function(*first(arguments))
                value, kept = jax.tree.map(
                    lambda leaf: jnp.asarray(leaf)[None], (value, kept)
                )
            else:
                value, kept = jax.vmap(function)(*arguments)
            return jax.tree.map(lambda leaf: _weighted_sum(weights, leaf), value), kept

        slices = jax.tree.map(in_chunks, (self.weights, arguments))
        play, (shapes, _) = traced(of_chunk, *first(slices))

        def visit(total, slices):
            value, kept = play(*slices)
            return jax.tree.map(jnp.add, total, value), kept

        start = jax.tree.map(lambda z: varying_like(z, self.weights), zeros(shapes))
        total, kept = jax.lax.scan(visit, start, slices)
        return total, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), kept)


def traced(function: Callable, *arguments: Any) -> tuple[Callable, Any]:
    """Returns the function as traced once with arguments, and its result's shapes.

    `jax.eval_shape` and a call afterwards would trace it twice, which takes seconds
    where each level of a round does it. The function may use what is traced around it.
    """
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return played(program, shapes), shapes


def played(program: ClosedJaxpr, shapes: Any) -> Callable:
    """Returns a function that was traced, whose result is a tree of these shapes."""
    flat, tree = jaxpr_as_fun(program), jax.tree.structure(shapes)
    return lambda *arguments: jax.tree.unflatten(
        tree, flat(*jax.tree.leaves(arguments))
    )


def first(tree: Any) -> Any:
    """Returns the first slice of every leaf."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def zeros(shapes: Any) -> Any:
    """Returns arrays of zeros of these shapes and their types."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _as_float(leaf: jax.Array) -> jax.Array:
    """Returns numbers that may be weighted."""
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def _weighted_sum(weights: jax.Array, values: jax.Array) -> jax.Array:
    """Returns sum_i w_i v_i, to which a NaN without weight adds nothing.

    Integers are a mechanism's, whose weights are 0 and 1: they are added exactly, in
    their own type.
    """
    shape = (-1,) + (1,) * (values.ndim - 1)
    weights = weights.reshape(shape)
    exact = jnp.issubdtype(values.dtype, jnp.integer)
    weighted = values if exact else weights * values
    return jnp.sum(jnp.where(weights != 0, weighted, 0), axis=0, dtype=weighted.dtype)
