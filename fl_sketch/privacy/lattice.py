"""Messages as integers: how fine, how long, with how much noise; imports no jax.

A message of n numbers is bounded by C, mixed so that no number is large, divided by a
step gamma and rounded at random. Sums are kept modulo 2^bits, and a sum beyond that
wraps around. Everything here is relative to C: the `scale` is C / gamma.

>>> sums = Integers(bits=16, most=100)
>>> round(scale(sums, noise_multiplier=1.0, length=1024), 1)
2496.7
>>> round(scale(sums, noise_multiplier=5.0, length=1024), 1)
1389.4
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fl_sketch.core import validate

KINDS = ("skellam", "discrete_gaussian")
OF_SERVER = "discrete_gaussian"  # the kind that a server draws at once
SHORTEST, LONGEST = 8, 32  # bits of a number
SEEN = 30  # bits at most that a sum uses, of 32, so that a simulator sees it wrap
DEVIATIONS = 4.0  # standard deviations of a sum that fit
FINEST = 2.0**15  # the largest scale: finer steps than C / 2^15 gain nothing
LARGEST = 2.0**14  # the largest standard deviation of one draw, whose table is finite


class Integers(NamedTuple):
    """How numbers become integers, and who draws their noise.

    Attributes:
      bits: bits of a number on the wire, from `SHORTEST` to `LONGEST`.
      most: the most messages that are added up.
      smallest: the number of clients whose shares are the promised noise; 0: the server
        draws it at once.
      granularity: gamma / C; 0: the least with which sums fit their bits.
      lengths: the number of integers of each release of a sample.
    """

    bits: int
    most: int
    smallest: int = 0
    granularity: float = 0.0
    lengths: tuple[int, ...] = ()

    def of(self, numbers: Sequence[int]) -> "Integers":
        """Returns the same for releases of messages of so many numbers."""
        return self._replace(lengths=tuple(padded(count) for count in numbers))

    @property
    def draws(self) -> int:
        """How many draws of noise are the promised one."""
        return self.smallest or 1

    def bytes_up(self, numbers: int) -> int:
        """Returns the bytes of a message of so many numbers."""
        return -(-padded(numbers) * self.bits // 8)


def padded(numbers: int) -> int:
    """Returns the length of a message as integers: the next power of two.

    >>> padded(1), padded(250), padded(256)
    (1, 256, 256)
    """
    return 1 << (numbers - 1).bit_length()


def require(integers: Integers, noise_multiplier: float) -> None:
    """Raises a ValueError in one line for integers that cannot be."""
    validate.at_least_one(most=integers.most)
    validate.in_range(0, math.inf, granularity=integers.granularity)
    if not SHORTEST <= integers.bits <= LONGEST:
        msg = f"Expected bits from {SHORTEST} to {LONGEST}, got bits={integers.bits}."
        raise ValueError(msg)
    least = 1 / FINEST
    least = max(least, noise_multiplier / math.sqrt(integers.draws) / LARGEST)
    if 0 < integers.granularity < least:
        msg = (
            f"Expected granularity >= {least:.3g} (over the bound) with "
            f"noise_multiplier={noise_multiplier:.4g}, or 0: by the bits, got "
            f"granularity={integers.granularity}."
        )
        raise ValueError(msg)


def require_length(integers: Integers, noise_multiplier: float, length: int) -> None:
    """Raises a ValueError for bits that are too few for messages of this length.

    Or for a granularity with which a simulator could not see all wraps.
    """
    finest = fitting(integers._replace(bits=SEEN), noise_multiplier, length)
    if integers.granularity and integers.granularity * finest < 1:
        msg = (
            f"Expected granularity >= {1 / finest:.3g}, with which sums have {SEEN} "
            f"bits, got granularity={integers.granularity}."
        )
        raise ValueError(msg)
    if scale(integers, noise_multiplier, length) < 1:
        msg = (
            f"Expected more bits, or a smaller granularity, for sums of "
            f"{integers.most} messages with noise_multiplier={noise_multiplier:.4g}: "
            f"a step would be longer than a message, got bits={integers.bits}."
        )
        raise ValueError(msg)


def scale(integers: Integers, noise_multiplier: float, length: int) -> float:
    """Returns C / gamma for messages of `length` integers."""
    if integers.granularity:
        return 1 / integers.granularity
    by_bits = fitting(integers, noise_multiplier, length)
    noise = noise_multiplier / math.sqrt(integers.draws)
    return min(by_bits, FINEST, LARGEST / noise if noise else math.inf)


def fitting(integers: Integers, noise_multiplier: float, length: int) -> float:
    """Returns the largest scale at which sums fit into their bits; 0: there is none.

    A number of a sum has at most the variance (n C)^2 / length of n mixed messages that
    are all alike, plus n / 4 of rounding, plus that of the noise of all who came.
    `DEVIATIONS` standard deviations fit, as in Kairouz et al. (2021), section 4.
    """
    half, n = 2.0 ** (min(integers.bits, SEEN) - 1), integers.most
    left = (half / DEVIATIONS) ** 2 - n / 4
    noise = noise_multiplier**2 * max(1.0, n / integers.draws)
    noise = noise if integers.smallest else noise_multiplier**2
    return math.sqrt(max(0.0, left) / (n**2 / length + noise))


def square(scale: float, length: int) -> int:
    """Returns the most that the squares of a message's integers add up to.

    It is what Kairouz et al. (2021), Proposition 22, allow with beta = e^(-1/2): each
    rounding keeps it with a probability of at least 1 - beta, and is drawn again where
    it does not. Their `sqrt(2 log(1 / beta))` is one.
    """
    return math.floor(scale**2 + length / 4 + scale + math.sqrt(length) / 2)


def draw_variance(integers: Integers, noise_multiplier: float, scale: float) -> float:
    """Returns the variance of one draw of noise, of `Integers.draws`, in integers."""
    return (noise_multiplier * scale) ** 2 / integers.draws
