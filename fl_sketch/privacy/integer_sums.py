"""The mechanism whose messages are integers, which a secure aggregation can add up.

A client bounds its message, mixes its numbers (signs and a Walsh-Hadamard transform),
divides by a step gamma, rounds at random, and may add a share of integer noise. The
server reads the sum modulo 2^bits, and undoes the step and the mixing. Only integers
are added, whose sums are exact, and no low bit of a float gives anything away.

Formal guarantees, for each exchange:

- the integers of one client have at most `lattice.square` as sum of their squares,
  counted exactly, whatever rounding did before;
- the noise has exactly the chances of `integer_tables`;
- what is released is a function of the sum of integers modulo 2^bits.

References: Kairouz, Liu and Steinke (2021), Algorithms 1 and 2; Agarwal, Kairouz and
Liu (2021), Algorithm 1.

>>> import jax, jax.numpy as jnp
>>> from fl_sketch.core.keys import round_keys
>>> from fl_sketch.privacy import clipping
>>> guard = integers(
...     clipping.clip(1.0), noise_multiplier=0.0, denominator=2, bits=16
... )
>>> keys = round_keys(jax.random.key(0), 0, 0)
>>> one = guard.encode((), 0, jnp.array([0.3, -0.4]), keys).summand
>>> jax.tree.map(lambda leaf: leaf.dtype, one)
(dtype('uint32'), dtype('uint32'))
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
from fl_sketch.privacy.smallest_cohort import withheld_below
from fl_sketch.sketch import hadamard

TRIES = 64  # roundings of a message; so many fail with a chance below 10^-13
HALF = 16  # bits of half a word
ROOT = 2.0**15.5 - 1  # of the largest square that int32 holds
FRACTION = 24  # bits of a float's fraction


def integers(
    bound: Bound,
    *,
    noise_multiplier: float,
    denominator: float,
    bits: int,
    noise: str = "skellam",
    smallest: int = 0,
    most: int = 0,
    granularity: float = 0.0,
) -> Mechanism:
    """Returns the mechanism that adds up integers modulo 2^bits.

    With `smallest`, every client adds a share of the noise of variance (z C)^2 /
    smallest, and a smaller cohort releases nothing, as with `mechanism.distributed`.
    Without it the server draws the noise at once, and is trusted. What a client sends
    is `modular.reduced` of its summand. The summand itself has the bits above, by which
    a simulator sees where a sum wrapped (the fact "wraps").

    Args:
      bound: the bound of a message, and the C that the noise scales with.
      noise_multiplier: the multiplier z of the sum over `smallest` clients.
      denominator: the number r of clients that are expected, fixed.
      bits: the bits of a number on the wire.
      noise: one of `lattice.KINDS`.
      smallest: the least number of participants with which the promise holds; 0: the
        noise is the server's.
      most: the most clients of a cohort; 0: `denominator`.
      granularity: the step gamma over C; 0: the least with which sums fit their bits,
        but for `lattice.DEVIATIONS` standard deviations.

    Raises:
      ValueError: in one line, for what cannot be.
    """
    clipping.require_noise(bound, noise_multiplier, denominator)
    validate.one_of(lattice.KINDS, noise=noise)
    validate.in_range(0, math.inf, smallest=smallest)
    if clipping.infinite(bound.limit):
        msg = "Expected a finite threshold with integers, got threshold=inf."
        raise ValueError(msg)
    sums = Integers(bits, most or math.ceil(denominator), smallest, granularity)
    lattice.require(sums, noise_multiplier)
    chain = _Chain(sums, bound.limit, noise_multiplier, noise)
    bounded = clipping.bounded(bound)

    def encode(state, exchange, message, keys):
        one = bounded(state, message)
        words = chain.words(one.summand, exchange, keys)
        summand = (words, jnp.float32(1)) if smallest else words
        return Encoded(summand, one.rejected)

    def release(state, exchange, total, keys):
        words, count = total if smallest else (total, jnp.float32(1))
        sums, wraps = chain.read(words, exchange, keys)
        mean, withheld = jax.tree.map(lambda leaf: leaf / denominator, sums), {}
        if smallest:
            mean, withheld = withheld_below(smallest, count, mean)
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
        noise=noise,
        integers=sums,
        said=(noise if smallest else "central", bound.name, bound.limit),
    )


def on_wire(mechanism: Mechanism, summand: Any) -> jax.Array:
    """Returns the message of a client to a secure sum: numbers below 2^bits, uint32.

    Args:
      mechanism: one of `integers`.
      summand: what it encoded.
    """
    assert mechanism.integers is not None
    words = summand[0] if mechanism.smallest else summand
    return reduced(_vector(words), mechanism.integers.bits)


def from_wire(
    mechanism: Mechanism, numbers: jax.Array, message: Message, clients: int
) -> Any:
    """Returns what the mechanism releases a mean of, from a sum modulo 2^bits.

    Args:
      mechanism: one of `integers`.
      numbers: the sum of what clients sent.
      message: a message before it was encoded, of which only shapes are read.
      clients: the number of clients in the sum.
    """
    words = _shaped(numbers, message)
    return (words, jnp.float32(clients)) if mechanism.smallest else words


def behind(
    mechanism: Mechanism, limit: Any, mean: jax.Array, exchange: int, keys
) -> jax.Array:
    """Returns the sum of integers of which a mean was made, for those who attack it.

    Args:
      mechanism: one of `integers`.
      limit: its bound C.
      mean: the mean of messages whose length is a power of two, a vector.
      exchange: the number of the exchange.
      keys: the keys, of which only `shared` is read.
    """
    key = _key(keys.shared, Purpose.MIXING, exchange)
    scale = lattice.scale(mechanism.integers, mechanism.noise_multiplier, mean.size)
    total = hadamard.rotated(key, mean) * (mechanism.denominator * scale / limit)
    return jnp.round(total).astype(jnp.int32)


class _Chain:
    """The way from a bounded message to integers, and from their sum back."""

    def __init__(self, sums: Integers, limit: Any, noise_multiplier: float, kind: str):
        self.sums, self.limit, self.z, self.kind = sums, limit, noise_multiplier, kind

    def words(self, message: Message, exchange: int, keys) -> Any:
        """Returns the integers of a client's message, with its share of noise."""
        vector = trees.ravel(message)
        length = lattice.padded(vector.size)
        lattice.require_length(self.sums, self.z, length)
        scale = lattice.scale(self.sums, self.z, length)
        mixed = hadamard.rotated(_key(keys.shared, Purpose.MIXING, exchange), vector)
        key = _key(keys.own, Purpose.ROUNDING, exchange)
        square = lattice.square(scale, length)
        whole = rounded(key, mixed * (scale / self.limit), square)
        if self.sums.smallest:
            whole += self._noise(keys.own, exchange, length, scale)
        return _shaped(whole.astype(jnp.uint32), message)

    def read(self, total: Any, exchange: int, keys) -> tuple[Message, jax.Array]:
        """Returns the sum of messages that words mean, and how many numbers wrapped."""
        inside, size = total[0], trees.count(total[0])
        words = _vector(total)
        length = words.size
        scale = lattice.scale(self.sums, self.z, length)
        if not self.sums.smallest:
            noise = self._noise(keys.server, exchange, length, scale)
            words += noise.astype(jnp.uint32)
        whole = centred(words, self.sums.bits)
        wraps = jnp.sum(whole.astype(jnp.uint32) != words, dtype=jnp.float32)
        key = _key(keys.shared, Purpose.MIXING, exchange)
        step = self.limit / scale
        sums = step * hadamard.rotated_back(key, whole.astype(jnp.float32), size)
        return trees.unraveler(_floats(inside))(sums), wraps

    def _noise(self, key: Key, exchange: int, length: int, scale: float) -> jax.Array:
        if not self.z:
            return jnp.zeros(length, jnp.int32)
        key = _key(key, Purpose.NOISE, exchange)
        variance = lattice.draw_variance(self.sums, self.z, scale)
        return integer_noise.noise(key, (length,), self.kind, variance)


def rounded(key: Key, values: jax.Array, square: int) -> jax.Array:
    """Returns a vector rounded at random to integers of a bounded norm, int32.

    A number goes up with the chance of its fractional part. All are drawn again until
    the sum of their squares is at most `square`. If `TRIES` times it is not, or if a
    number has a square that is no integer of 32 bits, all are zero.

    Args:
      values: numbers, float32.
      square: the bound.
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
    rows = (whole * whole).astype(jnp.uint32).reshape(-1, min(whole.size, 1 << HALF))
    low, high = _halves(rows)
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


def _floats(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, "float32"), tree)


def _key(key: Key, purpose: Purpose, exchange: int) -> Key:
    return jax.random.fold_in(apart(key, purpose), exchange)
