"""Where the noise ends, and what the missing tail adds to delta; no jax in here.

The numbers of `gaussian.standard` are quantiles: x has the sign of one bit and the size
with `P(|N(0, 1)| > x) = u`. Here u is on the grid (m + 1/2) 2^-47, m in [0, 2^47).
Where the first 31 bits of m are zero, 64 more bits follow, so that u is at least
`SMALLEST` and no number is larger than `REACH`. An exact Gaussian goes on. Whoever sees
an output that noise of this reach cannot have made of the data without a client knows
that the client is there: that much is added to delta.
"""

import math

FIRST_BITS, MORE_BITS = 47, 64  # of u, and those that follow the smallest
ZERO_BITS = 31  # leading bits that must be zero for more to follow
SMALLEST = 2.0 ** -(FIRST_BITS + MORE_BITS + 1)


def upper(x: float) -> float:
    """Returns P(N(0, 1) > `x`).

    >>> upper(0.0), f"{upper(5.42):.3g}"
    (0.5, '2.98e-08')
    """
    return math.erfc(x / math.sqrt(2)) / 2


def _reach(probability: float) -> float:
    low, high = 0.0, 40.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if 2 * upper(middle) > probability else (low, middle)
    return low


REACH = _reach(SMALLEST)  # 12.2 standard deviations


def missing(shift: float, coordinates: int, reach: float = REACH) -> float:
    """Returns how likely one release lies where noise without a client cannot.

    A client moves the sum by a vector of this length, over the noise. The chance is the
    sum over coordinates of `P(|N + v_i| > reach)`. It is convex in the squares of the
    v_i as long as the length stays below reach - 1. Then it is largest if everything
    lies in one coordinate.

    Args:
      shift: the length of what the client moves, in standard deviations.
      coordinates: the numbers of the release, all together.
      reach: the largest number of the noise, in standard deviations.

    Returns:
      A probability; 1 for a shift beyond reach - 1, where that argument ends.
    """
    if shift > reach - 1:
        return 1.0
    worst = upper(reach - shift) + upper(reach + shift)
    return min(1.0, worst + (coordinates - 1) * 2 * upper(reach))
