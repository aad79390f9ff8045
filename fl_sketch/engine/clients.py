"""A device visits its clients, a chunk at a time, and adds up what they say."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from fl_sketch.core.keys import for_batches, of_client
from fl_sketch.core.protocols import (
    Algorithm,
    Channel,
    Key,
    Keys,
    Memory,
    Round,
    Server,
    Work,
)
from fl_sketch.core.trees import varying_like

Fetch = Callable[[Any, jax.Array, Any, Key], Any]


class Client(NamedTuple):
    """What is kept of one client between rounds; in a bank, of all of them.

    It is what its `local` work keeps, and its `memory` of the channel.
    """

    local: Any
    memory: Any


class Seat(NamedTuple):
    """A place of a cohort; with a leading axis, all of them.

    Attributes:
      client: the part that is kept of the client that has it.
      id: the number of the client, int32.
      plan: the caller's own for this place, or None.
    """

    client: Client
    id: jax.Array
    plan: Any


class Visitor(NamedTuple):
    """What clients do, as one device plays them in one round.

    Attributes:
      algorithm: the work of clients and server.
      server: the server before the round, as clients see it.
      fetch: `(data, client id, plan, key) -> batches`.
      data: the data that `fetch` reads.
      of_round: the keys of the round.
      weights: the weights of the device's clients, float32.
      chunk: the number of clients that work at a time.
    """

    algorithm: Algorithm
    server: Server
    fetch: Fetch
    data: Any
    of_round: Keys
    weights: jax.Array
    chunk: int

    def keys(self, client: jax.typing.ArrayLike) -> Keys:
        """Returns the keys of a `client` in this round."""
        return of_client(self.of_round, client)

    def work(self, seat: Seat) -> Work:
        """Returns what the local steps of the client on a `seat` come to."""
        keys = self.keys(seat.id)
        batches = self.fetch(self.data, seat.id, seat.plan, for_batches(keys))
        return self.algorithm.local.run(self.server, seat.client.local, batches, keys)

    def talk(self, seat: Seat, work: Work, round: Round) -> tuple[Channel, tuple]:
        """Returns the channel, and the arguments of the talk of the client on a `seat`.

        Its `work` is done, and `round` is what it is told of the round.
        """
        memory = Memory(seat.client.memory, self.server.memory)
        arguments = (work.update, memory, self.keys(seat.id), round)
        return self.algorithm.uplink, arguments

    def each(self, function: Callable, *arguments: Any) -> tuple[Any, Any]:
        """Returns (weighted sum of first results, all second results).

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
                value, kept = jax.tree.map(lambda leaf: leaf[None], (value, kept))
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
    """Returns the same function, traced once, and the shapes of what it returns.

    Asking `jax.eval_shape` and calling it afterwards would trace it twice, and what is
    traced twice at every depth of a round takes seconds.

    Args:
      function: the function, which may use what is traced around it.
      *arguments: the arguments that it is traced with.
    """
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    flat, tree = jaxpr_as_fun(program), jax.tree.structure(shapes)

    def play(*given):
        return jax.tree.unflatten(tree, flat(*jax.tree.leaves(given)))

    return play, shapes


def first(tree: Any) -> Any:
    """Returns the first slice of every leaf of `tree`."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def zeros(shapes: Any) -> Any:
    """Returns arrays of zeros of these `shapes` and their types."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _weighted_sum(weights: jax.Array, values: jax.Array) -> jax.Array:
    """Returns sum_i w_i v_i, in which what has no weight cannot be NaN either.

    Integers are a mechanism's, whose weights are 0 and 1: they are added exactly, in
    their own type.
    """
    shape = (-1,) + (1,) * (values.ndim - 1)
    weights = weights.reshape(shape)
    exact = jnp.issubdtype(values.dtype, jnp.integer)
    weighted = values if exact else weights * values
    return jnp.sum(jnp.where(weights != 0, weighted, 0), axis=0, dtype=weighted.dtype)
