"""Gaussian noise whose grid and tail are known.

`jax.random.normal` of float32 ends at 5.42 standard deviations below and 5.22 above
the mean. One release of a few hundred numbers in a few hundred rounds reaches that too
often for a small delta. The noise here goes to `accounting.REACH`, 12.2, and the
accountant charges delta for what is missing beyond.

A number x is a quantile. It has the sign of one bit and the size with `P(|N(0, 1)| > x)
= u`, u on the grid (m + 1/2) 2^-47, m in [0, 2^47). If the first 31 bits of m are zero,
64 more bits follow, so that u is at least `accounting.SMALLEST`.

The remaining error of float32. A noisy sum is rounded to multiples of a power of two
between 1/32 and 1/16 of the noise. Whatever the data, the outputs are the same
multiples, and no low bit shows which numbers were added. The quantile is wrong by at
most 2.5e-6 of a standard deviation, and sums of size M are wrong by M 2^-24 for each of
n summands. Together that shifts the edges of a cell by e = 2.5e-6 + n M 2^-24 standard
deviations. The logarithm of the probability of an output then moves by at most 64 e for
each number: 2e-4 for a sum of ten summands no longer than the noise. The accountant
does not count this. Worst cases of many numbers add up to more than a guarantee allows,
although no attack is known. On sums of integers (`integer_sums`) it is zero.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fl_sketch.core import trees
from fl_sketch.core.protocols import Key, Message
from fl_sketch.privacy.accounting import SMALLEST

# |x| for u >= 1/2 is v = 1 - u times a polynomial in v^2. For u < 1/2 it is
# s = sqrt(-log u) times one in 1 / (1 + s) - MIDDLE. Both are fits by Chebyshev points.
NEAR = (
    1.25331414, 0.328116509, 0.180414486, 0.121873233, 0.0976391672, 0.0418635146,
    0.138337654,
)  # fmt: skip
MIDDLE = 0.32360366
FAR = (
    1.19273801, -1.33200654, -2.01922155, 0.412177056, 2.85092936, 3.61050198,
    -2.71959023, -8.71415267, -10.6694441, 25.2710279,
)  # fmt: skip
MORE = 1  # the use of a key for the further bits of the smallest numbers
STEPS = 2.0**-4  # of the grid of outputs, over the power of two below the noise


def standard(key: Key, count: int) -> jax.Array:
    """Returns `count` independent standard normal numbers, float32.

    The key may be of any kind. Noise that protects someone needs one of `core.chacha`.
    """
    pairs = -(-count // 2)
    words = jax.random.bits(key, (3 * pairs,), jnp.uint32)
    halves = words[2 * pairs :]
    rest = jnp.concatenate([halves >> 16, halves & 0xFFFF])[:count]

    def more():
        return jax.random.bits(jax.random.fold_in(key, MORE), (2, count), jnp.uint32)

    return from_words(words[:count], rest, more)


def from_words(
    first: jax.Array, rest: jax.Array, more: Callable[[], jax.Array]
) -> jax.Array:
    """Returns the normal numbers that uniform words make."""
    leading = first & jnp.uint32(0x7FFFFFFF)
    chance = _fraction(leading, 31) + (_fraction(rest, 47) + 2.0**-48)

    def refined():
        high, low = more()
        deep = _fraction(high, 79) + (_fraction(low, 111) + SMALLEST)
        return jnp.where(leading == 0, _fraction(rest, 47) + deep, chance)

    chance = lax.cond(jnp.any(leading == 0), refined, lambda: chance)
    size = lax.bitcast_convert_type(_size(chance), jnp.uint32)
    return lax.bitcast_convert_type(size | first & jnp.uint32(1 << 31), jnp.float32)


def noise(key: Key, like: Message, scale: jax.typing.ArrayLike) -> Message:
    """Returns independent noise with the shapes of a message, float32."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), like)
    numbers = jnp.asarray(scale) * standard(key, trees.count(like))
    return trees.unraveler(shapes)(numbers)


def on_grid(message: Message, scale: jax.typing.ArrayLike) -> Message:
    """Returns a message with noise of this `scale`, on multiples of a power of two."""
    bits = lax.bitcast_convert_type(jnp.float32(scale), jnp.uint32)
    power = lax.bitcast_convert_type(bits & jnp.uint32(0x7F800000), jnp.float32)
    step = power * STEPS
    return jax.tree.map(lambda leaf: jnp.round(leaf / step) * step, message)


def _fraction(word: jax.Array, bits: int) -> jax.Array:
    """Returns word 2^-bits, rounded to 24 bits."""
    return word.astype(jnp.float32) * np.float32(2.0**-bits)


def _size(chance: jax.Array) -> jax.Array:
    """Returns x >= 0 with P(|N(0, 1)| > x) = chance, wrong by at most 2.5e-6."""
    root = jnp.sqrt(-jnp.log(chance))
    far = root * _polynomial(FAR, 1 / (1 + root) - np.float32(MIDDLE))
    rest = 1 - chance
    near = rest * _polynomial(NEAR, rest * rest)
    return jnp.where(chance < 0.5, far, near)


def _polynomial(coefficients, x: jax.Array) -> jax.Array:
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + np.float32(coefficient)
    return value
