"""The mechanism whose messages are integers, which a secure aggregation can add up.

A client bounds its message, mixes its numbers, divides by a step gamma, rounds at
random, and may add a share of Skellam noise. The server reads the sum modulo 2^bits,
and undoes the step and the mixing. Formal guarantees, for each exchange:

- the integers of one client have at most `lattice.square` as sum of their squares,
  counted exactly, whatever mixing and rounding did before;
- the noise has exactly the chances of the tables of `integer_noise`;
- what is released is a function of the sum of integers modulo 2^bits.

Reference: Agarwal, Kairouz and Liu (2021), Algorithm 1, with the rounding of Kairouz,
Liu and Steinke (2021), Algorithm 1.

>>> import jax, jax.numpy as jnp
>>> from fl_sketch.core.keys import round_keys
>>> from fl_sketch.privacy import clipping
>>> guard = integers(
...     clipping.clip(1.0), noise_multiplier=0.0, denominator=2, bits=16
... )
>>> keys = round_keys(jax.random.key(0), 0, 0)
>>> one = guard.encode((), 0, jnp.array([0.3, -0.4]), keys).summand
>>> guard.release((), 0, one, keys).mean.round(3)
Array([ 0.15, -0.2 ], dtype=float32)
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core import trees, validate
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.modular import centred, reduced
from fl_sketch.core.protocols import Encoded, Key, Mechanism, Message, Release
from fl_sketch.core.trees import varying_like
from fl_sketch.privacy import clipping, integer_noise, lattice
from fl_sketch.privacy.clipping import Bound
from fl_sketch.privacy.lattice import Integers
from fl_sketch.sketch import hadamard

TRIES = 64  # roundings of a message; so many fail with a chance below 10^-13
HALF = 16  # bits of half a word
ROOT = 2.0**15.5 - 1  # of the largest square that int32 holds
FRACTION = 24  # bits of a float's fraction
SECOND = 1  # the use of a key for the second block


def integers(
    bound: Bound,
    *,
    noise_multiplier: float,
    denominator: float,
    bits: int,
    smallest: int = 0,
    most: int = 0,
) -> Mechanism:
    """Returns the mechanism that adds up integers modulo 2^bits.

    With `smallest`, every client adds a share of the noise of variance (z C)^2 /
    smallest, so that the sum over `smallest` clients or more has at least the noise of
    the guarantee. With fewer nothing is released: the mean is zero, and the released
    `withheld` is set. The number of clients is then not secret, so this is for
    samplings "fixed" and "everyone" with relation "replace_one". Without `smallest` the
    server draws the noise at once, and is trusted.

    What a client sends is `modular.reduced` of its summand. The summand itself has the
    bits above, by which a simulator sees where a sum wrapped (the fact "wraps").

    Args:
      bound: the bound of a message, and the C that the noise scales with.
      noise_multiplier: the multiplier z of the sum over `smallest` clients.
      denominator: the number r of clients that are expected, fixed.
      bits: the bits of a number on the wire.
      smallest: the least number of participants with which the guarantee holds; 0: the
        noise is the server's.
      most: the most clients of a cohort; 0: `denominator`.
    """
    clipping.require_noise(bound, noise_multiplier, denominator)
    validate.in_range(0, math.inf, smallest=smallest)
    if clipping.infinite(limit := bound.limit):
        msg = "Expected a finite threshold with integers, got threshold=inf."
        raise ValueError(msg)
    sums = Integers(bits, most or math.ceil(denominator), smallest)
    lattice.require(sums)
    bounded = clipping.bounded(bound)

    def noise(key, exchange, length, scale):
        if not noise_multiplier:
            return jnp.zeros(length, jnp.int32)
        variance = lattice.draw_variance(sums, noise_multiplier, scale)
        key = _key(key, Purpose.NOISE, exchange)
        return integer_noise.noise(key, (length,), variance)

    def encode(state, exchange, message, keys):
        one = bounded(state, message)
        vector = trees.ravel(one.summand)
        length = lattice.padded(vector.size)
        lattice.require_length(sums, noise_multiplier, length)
        scale = lattice.scale(sums, noise_multiplier, length)
        numbers = mixed(_key(keys.shared, Purpose.MIXING, exchange), vector, length)
        key, square = _key(keys.own, Purpose.ROUNDING, exchange), lattice.square
        whole = rounded(key, numbers * (scale / limit), square(scale, length))
        if smallest:
            whole += noise(keys.own, exchange, length, scale)
        words = _shaped(whole.astype(jnp.uint32), message)
        return Encoded((words, jnp.float32(1)) if smallest else words, one.rejected)

    def release(state, exchange, total, keys):
        (inside, outside), count = total if smallest else (total, jnp.float32(1))
        words = _vector((inside, outside))
        scale = lattice.scale(sums, noise_multiplier, words.size)
        if not smallest:
            own = noise(keys.server, exchange, words.size, scale)
            words += own.astype(jnp.uint32)
        whole = centred(words, bits)
        wraps = jnp.sum(whole.astype(jnp.uint32) != words, dtype=jnp.float32)
        key = _key(keys.shared, Purpose.MIXING, exchange)
        vector = unmixed(key, whole.astype(jnp.float32), trees.count(inside))
        step: Any = limit / scale
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, "float32"), inside
        )
        mean = trees.unraveler(shapes)(step * vector / denominator)
        withheld = {}
        if smallest:
            enough = count >= smallest
            mean = jax.tree.map(lambda leaf: jnp.where(enough, leaf, 0), mean)
            withheld = {"withheld": 1.0 - enough.astype(jnp.float32)}
        return Release(mean, state, {"wraps": wraps}, withheld)

    return Mechanism(
        tuple,
        bounded,
        encode,
        release,
        noise_multiplier,
        denominator,
        smallest,
        wire=lambda _, numbers: bits * sum(map(lattice.padded, numbers)),
        integers=sums,
        description=("skellam" if smallest else "central", bound.name, bound.limit),
    )


def on_wire(mechanism: Mechanism, summand: Any) -> jax.Array:
    """Returns the message of a client to a secure sum: numbers below 2^bits, uint32."""
    assert mechanism.integers is not None
    words = summand[0] if mechanism.smallest else summand
    return reduced(_vector(words), mechanism.integers.bits)


def from_wire(
    mechanism: Mechanism, numbers: jax.Array, message: Message, clients: int
) -> Any:
    """Returns what the mechanism releases a mean of, from a sum modulo 2^bits."""
    words = _shaped(numbers, message)
    return (words, jnp.float32(clients)) if mechanism.smallest else words


def mixed(key: Key, vector: jax.Array, length: int) -> jax.Array:
    """Returns a vector rotated at random: none of the `length` numbers is large.

    Padded to a power of two, they are rotated at once (signs and a Walsh-Hadamard
    transform). Of any other length the first b = `lattice.block` numbers are rotated,
    and then the last b of the result. As b is more than half of the length, each number
    was in a block. Rotations keep norms. A number of a rotated block is a sum of the
    block's numbers over sqrt(b) with random signs, so its mean square is the block's
    over b, and at most that of the whole vector over b.
    """
    size = lattice.block(length)
    first = hadamard.rotated(key, vector[:size])
    if size == length:
        return first
    both, left = jnp.concatenate([first, vector[size:]]), length - size
    second = hadamard.rotated(jax.random.fold_in(key, SECOND), both[left:])
    return jnp.concatenate([both[:left], second])


def unmixed(key: Key, numbers: jax.Array, count: int) -> jax.Array:
    """Returns the first `count` numbers of which `mixed` made others."""
    size = lattice.block(numbers.size)
    left = numbers.size - size
    if not left:
        return hadamard.rotated_back(key, numbers, count)
    second = jax.random.fold_in(key, SECOND)
    last = hadamard.rotated_back(second, numbers[left:], size)
    both = jnp.concatenate([numbers[:left], last])
    first = hadamard.rotated_back(key, both[:size], size)
    return jnp.concatenate([first, both[size:]])


def rounded(key: Key, values: jax.Array, square: int) -> jax.Array:
    """Returns a vector rounded at random to integers of a bounded norm, int32.

    A number goes up with the chance of its fractional part. All are drawn again until
    the sum of their squares is at most `square`. If `TRIES` times it is not, or if a
    number has a square that is no integer of 32 bits, all are zero.
    """
    countable = jnp.all(jnp.abs(values) < ROOT)  # not of a NaN
    low = jnp.floor(jnp.where(countable, values, 0))
    part, low = values - low, low.astype(jnp.int32)

    def again(state):
        number, _, _ = state
        words = jax.random.bits(jax.random.fold_in(key, number), values.shape)
        chance = (words >> (32 - FRACTION)).astype(jnp.float32) * 2.0**-FRACTION
        whole = low + (chance < part)
        return number + 1, whole, _square_at_most(whole, square)

    start = jnp.int32(0), low, varying_like(jnp.array(False), low)
    start = (varying_like(start[0], low), *start[1:])
    _, whole, fits = lax.while_loop(
        lambda state: ~state[2] & (state[0] < TRIES), again, start
    )
    return jnp.where(fits & countable, whole, 0)


def _square_at_most(whole: jax.Array, square: int) -> jax.Array:
    """Returns whether squares of integers, each below 2^31, add up to at most `square`.

    Exactly: they are added in halves of words, of 2^16 numbers at a time.
    """
    row = min(whole.size, 1 << HALF)
    squares = jnp.pad(whole * whole, (0, -whole.size % row))
    low, high = _halves(squares.astype(jnp.uint32).reshape(-1, row))
    (lowest, carried), (middle, highest) = map(_halves, (low, high))
    middle += carried + (lowest >> HALF)
    top = highest + (middle >> HALF)
    bottom = (middle << HALF) | (lowest & 0xFFFF)
    most = divmod(square, 1 << 32)
    return (top < most[0]) | ((top == most[0]) & (bottom <= jnp.uint32(most[1])))


def _halves(words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns sums over the last axis of the low and of the high halves of words."""
    low, high = words & 0xFFFF, words >> HALF
    return jnp.sum(low, -1, dtype=jnp.uint32), jnp.sum(high, -1, dtype=jnp.uint32)


def _vector(words: Any) -> jax.Array:
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(words)])


def _shaped(words: jax.Array, message: Message) -> Any:
    """Returns the first words shaped like a message, and the others."""
    leaves, treedef = jax.tree.flatten(message)
    parts, first = [], 0
    for leaf in leaves:
        parts.append(words[first : first + leaf.size].reshape(leaf.shape))
        first += leaf.size
    return treedef.unflatten(parts), words[first:]


def _key(key: Key, purpose: Purpose, exchange: int) -> Key:
    return jax.random.fold_in(apart(key, purpose), exchange)
