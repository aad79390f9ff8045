"""Channels that remember, made by wrapping channels that need not."""

import jax
import jax.numpy as jnp

from fl_sketch.core import trees
from fl_sketch.core.protocols import Channel, Delivery, Memory


def error_feedback(channel: Channel) -> Channel:
    """Adds to each update what the client's earlier messages left out.

    Conserves: the sum of what a client's messages stood for, plus its memory, is the
    sum of its updates. An update that is not finite leaves the memory as it was: it
    would stay there for good, and the client would be silent in every later round.

    Args:
      channel: the channel for the sums; one whose messages leave out less than they
        were given, such as `compressed` with a contraction.
    """

    def init(params):
        inner = channel.init(params)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return Memory((zeros, inner.client), inner.server)

    def talk(update, memory, keys, round):
        error, inner = memory.client
        owed = jax.tree.map(jnp.add, update, error)
        below = Memory(inner, memory.server)
        delivery, inner = yield from channel.talk(owed, below, keys, round)
        left = jax.tree.map(jnp.subtract, owed, delivery.own)
        error = trees.if_finite(left, error)
        return delivery, Memory((error, inner.client), inner.server)

    return Channel(talk, init)


def difference(channel: Channel) -> Channel:
    """Sends the change of a running estimate (EF21, Markov compression).

    Each client keeps g_i, the server g = mean of g_i over all clients, and both add
    what was sent: the server the sum over those who took part, over all there are.
    Those without weight in a round keep their g_i.

    Args:
      channel: the channel for the changes.
    """

    def init(params):
        inner = channel.init(params)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return Memory((zeros, inner.client), (zeros, inner.server))

    def talk(update, memory, keys, round):
        (own, inner_client), (average, inner_server) = memory
        change = jax.tree.map(jnp.subtract, update, own)
        below = Memory(inner_client, inner_server)
        delivery, inner = yield from channel.talk(change, below, keys, round)
        own = trees.if_finite(jax.tree.map(jnp.add, own, delivery.own), own)
        share = round.denominator / round.population
        average = jax.tree.map(
            lambda g, mean: (g + share * mean).astype(g.dtype),
            average,
            delivery.estimate,
        )
        memory = Memory((own, inner.client), (average, inner.server))
        return Delivery(average, own), memory

    return Channel(talk, init)
