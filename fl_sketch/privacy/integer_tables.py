"""Exact tables of integer noise: whole chances of every number; imports no jax.

The chances are whole multiples of 2^-127 that add up to one, made in Python's integers:
of a discrete Gaussian, P(k) ~ exp(-k^2 / (2 sigma^2)), or of Skellam noise, the
difference of two Poisson numbers of mean mu / 2, P(k) = exp(-mu) I_k(mu). A draw looks
up one of 2^j columns, each of which holds two numbers ("alias method"), so that its
time does not depend on the noise.

>>> sum(weights("skellam", 4.0)) == 1 << 127
True
>>> table("discrete_gaussian", 4.0).numbers
27
"""

import decimal
import fractions
import functools
import math
from typing import NamedTuple

import numpy as np

from fl_sketch.core import validate
from fl_sketch.privacy.lattice import KINDS

CHANCE = 127  # bits of a chance; one more is the sign
WORD = 32
REST = 120  # what lies beyond a table has less than 2^-REST of the chance
EXACT = 256  # bits of the fractions that chances are made of
START = 300  # Bessel functions are made from where less than 2^-START is left


class Table(NamedTuple):
    """A distribution of sizes, ready to be drawn from.

    Attributes:
      limits: 128-bit numbers, the most significant word first; a column gives its own
        number to uniform ones below its limit, uint32 [4, columns].
      others: the number that a column gives to all other ones, int32 [columns].
      numbers: how many sizes there are, from zero on.
    """

    limits: np.ndarray
    others: np.ndarray
    numbers: int


def weights(kind: str, variance: float) -> list[int]:
    """Returns the chances of the sizes 0, 1, ... of a number, in units of 2^-127.

    Args:
      kind: one of `lattice.KINDS`.
      variance: the variance mu of Skellam noise, or the sigma^2 of a discrete Gaussian,
        above zero.

    Raises:
      ValueError: for an impossible kind or variance.
    """
    validate.one_of(KINDS, noise=kind)
    if not 0 < variance < math.inf:
        msg = f"Expected a variance above 0 and finite, got variance={variance}."
        raise ValueError(msg)
    make = {"skellam": _bessel, "discrete_gaussian": _squares}[kind]
    chances = make(variance)
    whole = chances[0] + 2 * sum(chances[1:])
    units = [(2 * chance << CHANCE) // whole for chance in chances[1:]]
    units = units[: sum(unit > 0 for unit in units)]  # they fall
    return [(1 << CHANCE) - sum(units), *units]


def reach(kind: str, variance: float) -> int:
    """Returns the largest size of which a table has a chance."""
    return _end(kind, variance, REST)


@functools.lru_cache(maxsize=16)  # a table of 2^18 columns takes a second
def table(kind: str, variance: float) -> Table:
    """Returns the table of `weights`, whose arguments it has."""
    chances = weights(kind, variance)
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


def _squares(variance: float) -> list[int]:
    """Returns exp(-k^2 / (2 sigma^2)) of k = 0, 1, ..., in units of 2^-EXACT."""
    with decimal.localcontext(prec=EXACT):
        step = (-1 / (2 * decimal.Decimal(variance))).exp()
        once = int(step * (1 << EXACT))
    twice, ratio, chances = once * once >> EXACT, once, [1 << EXACT]
    for _ in range(_end("discrete_gaussian", variance, REST)):
        chances.append(chances[-1] * ratio >> EXACT)
        ratio = ratio * twice >> EXACT
    return chances


def _bessel(variance: float) -> list[int]:
    """Returns multiples of I_k(mu) of k = 0, 1, ...

    They come from the largest k on, by `I_{k-1} = I_{k+1} + (2 k / mu) I_k`. What the
    first two are does not matter further down, as they are far too small.
    """
    mu = fractions.Fraction(variance)
    last, first = (_end("skellam", variance, rest) for rest in (REST, START))
    later, here, found = 0, 1 << EXACT, []
    for k in range(first, 0, -1):
        later, here = here, later + 2 * k * here * mu.denominator // mu.numerator
        found.append(here)
    return found[::-1][: last + 1]


def _end(kind: str, variance: float, bits: int) -> int:
    """Returns a size beyond which there is less than 2^-bits of the chance."""
    sigma, exponent = math.sqrt(variance), (bits + 1) * math.log(2)
    if kind == "discrete_gaussian":  # sub-Gaussian with sigma, as Canonne et al. say
        return math.ceil(sigma * math.sqrt(2 * exponent))

    def log_chance(k):  # Chernoff's bound
        root = math.sqrt(variance**2 + k**2)
        return root - variance - k * math.asinh(k / variance)

    low, high = 0, 2 * math.ceil(sigma * exponent + exponent)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if log_chance(middle) < -exponent else (middle, high)
    return high
