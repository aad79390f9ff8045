"""Skellam noise whose distribution is known: a draw from an exact table.

Skellam noise of variance mu is the difference of two Poisson numbers of mean mu / 2,
P(k) = exp(-mu) I_k(mu). The table has chances that are whole multiples of 2^-127 and
add up to one, made in Python's integers; it ends where less than 2^-113 is left. Each
is wrong by less than one of these units, but for that of zero, which has what the
others lack. So a draw differs from exact noise with a chance of less than 2^-108.

A draw takes 64 random bits: a sign, a column of the table ("alias method") and 32 bits
that are compared with the column's limit. Where these are equal, once in 2^32 draws, 96
more bits decide. So a number has exactly the chances of `weights`, and its time does
not depend on the noise. `jax.random.poisson` does not do: at a rate of 5e5 its
differences have four per cent too little variance.

>>> import jax
>>> noise(jax.random.key(0), (3,), 100.0).dtype
dtype('int32')
>>> sum(weights(4.0)) == 1 << 127
True
"""

import fractions
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fl_sketch.core.protocols import Key

CHANCE = 127  # bits of a chance; one more is the sign
WORD = 32
REST = 120  # what lies beyond a table has less than 2^-REST of the chance
EXACT = 256  # bits of the fractions that chances are made of
START = 300  # Bessel functions are made from where less than 2^-START is left
MORE = 1  # the use of a key for the bits that decide where the first are equal


class Table(NamedTuple):
    """A distribution of sizes, ready to be drawn from.

    A column gives its own number to uniform ones below its limit (of 128 bits, the most
    significant word first), and another number to all others.
    """

    limits: np.ndarray  # uint32 [4, columns]
    others: np.ndarray  # int32 [columns]
    numbers: int  # how many sizes there are, from zero on


def noise(key: Key, shape: tuple[int, ...], variance: float) -> jax.Array:
    """Returns independent integers of Skellam noise, int32."""
    return drawn(key, math.prod(shape), table(float(variance))).reshape(shape)


def drawn(key: Key, count: int, table: Table) -> jax.Array:
    """Returns `count` independent draws from a table, with random signs, int32."""
    limits, others = jnp.asarray(table.limits), jnp.asarray(table.others)
    bits = (table.others.size - 1).bit_length()

    def begun():
        where, first = jax.random.bits(key, (2, count), jnp.uint32)
        return where, first, ((where << 1) >> (WORD - bits)).astype(jnp.int32)

    def signed(where, column, below):
        size = jnp.where(below, column, others[column])
        return jnp.where(where >> (WORD - 1) == 1, -size, size)

    def decided(_):
        where, first, column = begun()
        rest = jax.random.bits(jax.random.fold_in(key, MORE), (3, count), jnp.uint32)
        below = _smaller([first, *rest], [word[column] for word in limits])
        return signed(where, column, below), jnp.zeros_like(equal)

    where, first, column = begun()
    limit = limits[0][column]
    equal = jnp.any(first == limit)
    # A loop of no step or one: under vmap too, it takes none where nothing is equal.
    # All but its result is made again, since XLA would copy what a loop reads.
    start = signed(where, column, first < limit), equal
    return lax.while_loop(lambda state: state[1], decided, start)[0]


def _smaller(words, limits) -> jax.Array:
    """Returns whether numbers of several words, the first leading, are smaller."""
    smaller = words[-1] < limits[-1]
    for word, limit in list(zip(words, limits, strict=True))[-2::-1]:
        smaller = (word < limit) | ((word == limit) & smaller)
    return smaller


def weights(variance: float) -> list[int]:
    """Returns the chances of the sizes 0, 1, ... of a number, in units of 2^-127.

    They are multiples of I_k, from the largest k on, by `I_{k-1} = I_{k+1} + (2 k / mu)
    I_k`. What the first two are does not matter further down, as they are far too
    small.
    """
    if not 0 < variance < math.inf:
        msg = f"Expected a variance above 0 and finite, got variance={variance}."
        raise ValueError(msg)
    mu = fractions.Fraction(variance)
    later, here, found = 0, 1 << EXACT, []
    for k in range(reach(variance, START), 0, -1):
        later, here = here, later + 2 * k * here * mu.denominator // mu.numerator
        found.append(here)
    bessel = found[::-1][: reach(variance, REST) + 1]
    whole = bessel[0] + 2 * sum(bessel[1:])
    units = [(2 * chance << CHANCE) // whole for chance in bessel[1:]]
    units = units[: sum(unit > 0 for unit in units)]  # they fall
    return [(1 << CHANCE) - sum(units), *units]


@functools.lru_cache(maxsize=16)  # a table of 2^18 columns takes a second
def table(variance: float) -> Table:
    """Returns the table of `weights`, whose argument it has."""
    chances = weights(variance)
    bits = max(1, (len(chances) - 1).bit_length())
    room = 1 << (CHANCE - bits)  # of a column
    left = chances + [0] * ((1 << bits) - len(chances))
    limits, others = [room] * len(left), list(range(len(left)))
    small = [number for number, chance in enumerate(left) if chance < room]
    large = [number for number, chance in enumerate(left) if chance > room]
    while small and large:
        column, giver = small.pop(), large[-1]
        limits[column], others[column] = left[column], giver
        left[giver] -= room - left[column]
        if left[giver] <= room:
            large.pop()
            if left[giver] < room:
                small.append(giver)
    words = [min(limit << bits + 1, (1 << 128) - 1) for limit in limits]
    packed = b"".join(word.to_bytes(16, "big") for word in words)
    split = np.frombuffer(packed, ">u4").reshape(-1, 4).T.astype(np.uint32)
    return Table(np.ascontiguousarray(split), np.array(others, np.int32), len(chances))


def reach(variance: float, bits: int) -> int:
    """Returns a size beyond which there is less than 2^-bits of the chance."""
    exponent = (bits + 1) * math.log(2)

    def log_chance(k):  # Chernoff's bound
        root = math.sqrt(variance**2 + k**2)
        return root - variance - k * math.asinh(k / variance)

    low, high = 0, 2 * math.ceil(math.sqrt(variance) * exponent + exponent)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if log_chance(middle) < -exponent else (middle, high)
    return high
