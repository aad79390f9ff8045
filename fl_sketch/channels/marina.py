"""MARINA: now and then a whole gradient, else the compressed change since last time."""

import jax
import jax.numpy as jnp

from fl_sketch.core import lengths, trees, validate
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.protocols import Channel, Coded, Compressor, Delivery, Memory
from fl_sketch.core.wire import FLOAT_BITS


def marina(compressor: Compressor, probability: float) -> Channel:
    """Sends pairs (gradient, its change since the last round), one or the other.

    A coin that all share decides: heads, with this probability and always in the first
    round, the gradients, whose mean becomes g; else the compressed changes, whose mean
    is added to g. The estimate is g, which stands in the server's memory.

    Args:
      compressor: the compressor of the change, unbiased.
      probability: the probability of a whole gradient.

    Reference: Gorbunov et al. (2021), Algorithm 1.
    """
    validate.in_range(0, 1, probability=probability)

    def init(params):
        return Memory(server=jax.tree.map(jnp.zeros_like, params))

    def talk(update, memory, keys, round):
        (now, change), before = update, memory.server
        coin = apart(keys.shared, Purpose.COIN)
        whole = jax.random.bernoulli(coin, probability) | (round.number == 0)
        vector = trees.ravel(change)
        short = trees.unraveler(change)(compressor.apply(keys.own, vector))
        sent = jax.tree.map(lambda a, b: jnp.where(whole, a, b), now, short)
        d = vector.size
        bits = lengths.either(whole, FLOAT_BITS * d, compressor.bits(d))
        heard = yield Coded(sent, bits)
        average = jax.tree.map(
            lambda new, old: jnp.where(whole, new, old + new), heard, before
        )
        return Delivery(average, round.counted(sent)), Memory(server=average)

    return Channel(talk, init)
