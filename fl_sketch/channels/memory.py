"""Channels with memory."""

import jax
import jax.numpy as jnp

from fl_sketch.channels.basic import coded, whole_or
from fl_sketch.core import trees, validate
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.protocols import Channel, Compressor, Delivery, Memory
from fl_sketch.sketch import compressors


def error_feedback(channel: Channel) -> Channel:
    """Adds to each update what the client's earlier messages left out.

    The sum of what a client's messages stood for, plus its memory, is the sum of its
    updates. An update that is not finite leaves the memory as it was; else it would
    stay there, and silence the client in every later round.

    A `channel` that is known to leave out more than it is given, as an unbiased sketch
    or `compressors.sign()`, is refused before the first round.
    """

    def init(params):
        if not channel.contracts(params):
            raise ValueError(compressors.NO_FEEDBACK)
        inner = channel.init(params)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return Memory((zeros, inner.client), inner.server)

    def protocol(update, memory, keys, round):
        error, inner = memory.client
        corrected = jax.tree.map(jnp.add, update, error)
        inner = Memory(inner, memory.server)
        delivery, inner = yield from channel.protocol(corrected, inner, keys, round)
        left = jax.tree.map(jnp.subtract, corrected, delivery.own)
        error = trees.if_finite(left, error)
        return delivery, Memory((error, inner.client), inner.server)

    return Channel(protocol, init)


def difference(channel: Channel) -> Channel:
    """Sends the change of a running estimate through `channel` (EF21, Markov).

    Each client keeps g_i, and the server keeps g, the mean of g_i over all clients.
    Both add the message. The server adds the sum over the clients of the round, divided
    by the number of all clients. Clients without weight in a round keep their g_i.
    """

    def init(params):
        inner = channel.init(params)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return Memory((zeros, inner.client), (zeros, inner.server))

    def protocol(update, memory, keys, round):
        (own, inner_client), (average, inner_server) = memory
        change = jax.tree.map(jnp.subtract, update, own)
        inner = Memory(inner_client, inner_server)
        delivery, inner = yield from channel.protocol(change, inner, keys, round)
        own = trees.if_finite(jax.tree.map(jnp.add, own, delivery.own), own)
        share = round.denominator / round.population
        average = jax.tree.map(
            lambda g, mean: (g + share * mean).astype(g.dtype),
            average,
            delivery.estimate,
        )
        memory = Memory((own, inner.client), (average, inner.server))
        return Delivery(average, own), memory

    return Channel(protocol, init)


def marina(compressor: Compressor, probability: float) -> Channel:
    """Sends one of the pair (gradient, its change since the last round).

    A coin that all share decides. Heads, with this probability and always in the first
    round: the gradients, whose mean becomes g. Tails: the changes, compressed without
    bias, whose mean is added to g. The estimate is g, the server's memory.

    Reference: Gorbunov et al. (2021), Algorithm 1.
    """
    validate.in_range(0, 1, probability=probability)

    def init(params):
        return Memory(server=jax.tree.map(jnp.zeros_like, params))

    def protocol(update, memory, keys, round):
        (gradient, change), before = update, memory.server
        coin = apart(keys.shared, Purpose.COIN)
        heads = jax.random.bernoulli(coin, probability) | (round.number == 0)
        message = whole_or(heads, gradient, coded(compressor, keys.own, change))
        mean = yield message
        estimate = jax.tree.map(
            lambda new, old: jnp.where(heads, new, old + new), mean, before
        )
        own = round.counted(message.value)
        return Delivery(estimate, own), Memory(server=estimate)

    return Channel(protocol, init)
