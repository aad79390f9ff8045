"""Messages as integers: how fine, how long, with how much noise; imports no jax.

A message of n numbers is bounded by C, mixed so that no number is large, divided by a
step gamma and rounded at random. Sums are kept modulo 2^bits, and a sum beyond that
wraps around. Everything here is relative to C: the `scale` is C / gamma, the largest
with which sums fit their bits.

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

KINDS = ("skellam",)  # names of noise that clients add to integers
SHORTEST, LONGEST = 8, 32  # bits of a number
SEEN = 30  # bits at most that a sum uses, of 32, so that a simulator sees it wrap
DEVIATIONS = 4.0  # standard deviations of a sum that fit
FINEST = 2.0**15  # the largest scale: finer steps than C / 2^15 gain nothing
LARGEST = 2.0**14  # the largest standard deviation of one draw, whose table is finite
PADDING = 1.1  # the most integers of a message, over its numbers


class Integers(NamedTuple):
    """How numbers become integers, and who draws their noise.

    Attributes:
      bits: bits of a number on the wire, from `SHORTEST` to `LONGEST`.
      most: the most messages that are added up.
      smallest: the number of clients whose shares are the promised noise; 0: the server
        draws it at once.
      lengths: the number of integers of each release of a sample.
    """

    bits: int
    most: int
    smallest: int = 0
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
    """Returns the length of a message as integers.

    It is the next power of two if that is at most `PADDING` times as many. Otherwise
    nothing is padded, and two blocks that overlap are mixed (`integer_sums.mixed`).

    >>> padded(1), padded(130), padded(250), padded(256)
    (1, 130, 256, 256)
    """
    power = 1 << (numbers - 1).bit_length()
    return power if power <= PADDING * numbers else numbers


def block(length: int) -> int:
    """Returns the numbers that are mixed with each other: a power of two.

    >>> block(130), block(256)
    (128, 256)
    """
    return 1 << (length.bit_length() - 1)


def require(integers: Integers) -> None:
    """Raises a ValueError in one line for integers that cannot be."""
    validate.at_least_one(most=integers.most)
    if not SHORTEST <= integers.bits <= LONGEST:
        msg = f"Expected bits from {SHORTEST} to {LONGEST}, got bits={integers.bits}."
        raise ValueError(msg)


def require_length(integers: Integers, noise_multiplier: float, length: int) -> None:
    """Raises a ValueError for bits that are too few for messages of this length."""
    if scale(integers, noise_multiplier, length) < 1:
        msg = (
            f"Expected more bits for sums of {integers.most} messages with "
            f"noise_multiplier={noise_multiplier:.4g}: a step would be longer than a "
            f"message, got bits={integers.bits}."
        )
        raise ValueError(msg)


def scale(integers: Integers, noise_multiplier: float, length: int) -> float:
    """Returns C / gamma for messages of `length` integers; 0: no sum fits its bits.

    A number of a sum has at most the variance (n C)^2 / `block` of n mixed messages
    that are all alike, plus n / 4 of rounding, plus that of the noise of all who came.
    `DEVIATIONS` standard deviations fit, as in Kairouz et al. (2021), section 4.
    """
    half, n = 2.0 ** (min(integers.bits, SEEN) - 1), integers.most
    left = max(0.0, (half / DEVIATIONS) ** 2 - n / 4)
    noise = noise_multiplier**2
    if integers.smallest:
        noise *= max(1.0, n / integers.draws)
    fitting = math.sqrt(left / (n**2 / block(length) + noise))
    own = noise_multiplier / math.sqrt(integers.draws)
    return min(fitting, FINEST, LARGEST / own if own else math.inf)


def square(scale: float, length: int) -> int:
    """Returns the most that the squares of a message's integers add up to.

    It is what Kairouz et al. (2021), Proposition 22, allow with beta = e^(-1/2): each
    rounding keeps it with a probability of at least 1 - beta, and is drawn again where
    it does not. Their `sqrt(2 log(1 / beta))` is one. The proposition is for any vector
    of `length` numbers and of norm `scale`, so it does not matter how they were mixed:
    rotations of blocks keep the norm, and padding adds zeros.
    """
    return math.floor(scale**2 + length / 4 + scale + math.sqrt(length) / 2)


def draw_variance(integers: Integers, noise_multiplier: float, scale: float) -> float:
    """Returns the variance of one draw of noise, of `Integers.draws`, in integers."""
    return (noise_multiplier * scale) ** 2 / integers.draws


def deviation(
    integers: Integers | None, noise_multiplier: float, clients: float
) -> float:
    """Returns the standard deviation over C of a number of a sum of so many clients.

    Every client adds a share of the noise, if it is shared, and at most a quarter of a
    step's square by rounding.
    """
    if integers is None:
        return noise_multiplier
    steps = min(scale(integers, noise_multiplier, n) for n in integers.lengths)
    rounding = clients / (4 * steps**2) if steps else math.inf
    shares = clients / integers.draws if integers.smallest else 1.0
    return math.sqrt(noise_multiplier**2 * shares + rounding)
