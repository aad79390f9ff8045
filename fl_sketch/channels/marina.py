"""MARINA: now and then a whole gradient, else the compressed change since last time."""

import jax
import jax.numpy as jnp

from fl_sketch import trees, validate
from fl_sketch.protocols import Channel, Compressor, Delivery, Memory
from fl_sketch.wire import FLOAT_BITS

COIN = 0xC014  # sets the key of the shared coin apart


def marina(compressor: Compressor, probability: float) -> Channel:
    """Sends pairs (gradient, its change since the last round), one or the other.

    A coin that all share decides: heads, with this probability and always in the first
    round, the gradients, whose mean becomes g; else the compressed changes, whose mean
    is added to g. The estimate is g, which stands in the server's memory.

    Args:
      compressor: unbiased, of the change.
      probability: of a whole gradient.

    Reference: Gorbunov et al. (2021), Algorithm 1.
    """
    validate.in_range(0, 1, probability=probability)

    def init(params):
        return Memory((), (jax.tree.map(jnp.zeros_like, params), jnp.int32(0)))

    def mean(update, memory, keys, link):
        (now, change), (average, count) = update, memory.server
        coin = jax.random.fold_in(keys.shared, COIN)
        whole = jax.random.bernoulli(coin, probability) | (count == 0)
        vector = trees.ravel(change)
        short = trees.unraveler(change)(compressor.apply(keys.own, vector))
        sent = jax.tree.map(lambda a, b: jnp.where(whole, a, b), now, short)
        heard = link.mean(sent)
        average = jax.tree.map(
            lambda new, old: jnp.where(whole, new, old + new), heard, average
        )
        d = vector.size
        bits = jnp.where(whole, *map(jnp.uint32, (FLOAT_BITS * d, compressor.bits(d))))
        after = Memory((), (average, count + 1))
        return Delivery(average, link.counted(sent), bits), after

    return Channel(init, mean)
