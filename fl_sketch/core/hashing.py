"""Hash functions: signs, uniform words and keyed permutations, all from one key.

All randomness of an operator comes from a few threefry words drawn from the key. A
32-bit integer mixer takes the place of a hash family. It takes about 0.04 ns per
coordinate on a CPU core, and threefry 3 ns.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fl_sketch.core.platforms import by_platform
from fl_sketch.core.protocols import Key

TOP_BIT = 0x80000000
ONE = np.uint32(0x3F800000)  # the bits of 1.0
SHUFFLED_UP_TO = 4096
FEISTEL_ROUNDS = 6  # pairs of images pass chi-square tests from 4 on; 3 fail


def mix(word: jax.Array) -> jax.Array:
    """Returns a bijective scrambling of `word`, an array of uint32 ("lowbias32").

    The multipliers are from C. Wellons' search for the two-round mixer with the
    smallest avalanche bias. With one round less, the test of 4-wise products fails.
    """
    return _mixed(_spread(word))


def _spread(word: jax.Array) -> jax.Array:
    return word ^ (word >> 16)


def _mixed(word: jax.Array) -> jax.Array:
    word = word * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)


def sign_seeds(key: Key, rows: int) -> jax.Array:
    """Returns the words that choose the random signs of every row of an operator."""
    # The first step of `mix` takes index and seed apart, so that is done here.
    return _spread(jax.random.bits(key, (-(-rows // 32),), jnp.uint32))


def sign_mask(seeds: jax.Array | list, index: jax.Array, row: int) -> jax.Array:
    """Returns signs of the coordinates `index` (uint32) in a row, as `flip` takes them.

    They are bits of `mix(index ^ seed)`: 32 rows share one mixed word.
    """
    word = _mixed(_spread(index) ^ seeds[row // 32])
    return (word << (row % 32)) & jnp.uint32(TOP_BIT)


def flip(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns `x` as float32, with the sign flipped where `mask` has its top bit.

    The other bits of the mask are zero. It is computed as a product with +-1, since a
    flipped bit has no derivative.
    """
    sign = lax.bitcast_convert_type(mask | ONE, jnp.float32)
    return x.astype(jnp.float32) * sign


def offsets(key: Key, shape: tuple[int, int, int], modulus: int) -> jax.Array:
    """Returns int32 uniform below `modulus`, distinct along the last axis.

    Floyd's algorithm draws a uniform subset of size n without a table: for step
    r, a number up to modulus - n + r, or that bound itself if the number is taken.
    The modulo of a 32-bit word is biased by at most modulus / 2^32. The last axis of
    the shape is no longer than `modulus`.
    """
    words = jax.random.bits(key, shape, jnp.uint32)
    chosen = []
    for step in range(shape[-1]):
        bound = modulus - shape[-1] + step
        number = words[..., step] % jnp.uint32(bound + 1)
        taken = jnp.zeros(shape[:-1], bool)
        for earlier in chosen:
            taken |= number == earlier
        chosen.append(jnp.where(taken, jnp.uint32(bound), number))
    return jnp.stack(chosen, -1).astype(jnp.int32)


def sample_without_replacement(key: Key, count: int, d: int) -> jax.Array:
    """Returns `count` distinct int32 below `d`, in O(count) time and memory.

    They are the images of 0, 1, ... under a permutation of [0, d) made of `key`: a
    Feistel network on pairs (left, right) below ceil(sqrt(d)), with addition instead of
    xor so that any d works. Images outside [0, d) pass the network again, so it stays a
    bijection ("cycle walking"). On a few thousand points the network is measurably not
    uniform, and a true shuffle costs nothing.
    """
    if d <= SHUFFLED_UP_TO:
        return jax.random.permutation(key, d)[:count].astype(jnp.int32)
    side, end = math.isqrt(d - 1) + 1, np.uint32(d)  # which 2^31 is, and no int32
    seeds = jax.random.bits(key, (FEISTEL_ROUNDS,), jnp.uint32)

    def network(value):
        left, right = value // side, value % side
        for seed in seeds:
            left, right = right, (left + mix(right ^ seed) % side) % side
        return left * side + right

    def walk(values):
        return jnp.where(values >= end, network(values), values)

    def walked(values):
        return lax.while_loop(lambda values: jnp.any(values >= end), walk, values)

    start = network(jnp.arange(count, dtype=jnp.uint32))
    # If none is outside, a GPU need not wait to be told so.
    known = (lambda values: values) if side * side == d else None
    return by_platform(start, default=walked, cuda=known).astype(jnp.int32)
