"""Where drawn noise and drawn cohorts end, and what that adds to delta; imports no jax.

The numbers of `gaussian.standard` are quantiles: x has the sign of one bit and the size
with `P(|N(0, 1)| > x) = u`. Here u is on the grid (m + 1/2) 2^-47, m in [0, 2^47). If
the first 31 bits of m are zero, 64 more bits follow, so that u is at least `SMALLEST`
and no number is larger than `REACH`. An exact Gaussian has larger numbers. An output
that is out of reach without a client proves that the client took part. The probability
of such outputs is added to delta.

Integer noise comes from tables of whole chances in 2^-127, which add up to one and end
where less than 2^-113 is left. Each chance is wrong by less than one of these units,
but for that of zero, which has what the others lack. So a draw differs from exact noise
with a probability of less than `TABLE`.

A Poisson cohort has places for all but one cohort in 10^14, which is cut to the places.
"""

import math

SMALLEST = 2.0 ** -(47 + 64 + 1)
REACH = 12.238913701438605  # standard deviations: P(|N(0, 1)| > REACH) = SMALLEST
TABLE = 2.0**-108
CUT = 1e-14  # the probability of a Poisson cohort that is larger than its places


def upper(x: float) -> float:
    """Returns P(N(0, 1) > `x`).

    >>> upper(0.0), f"{upper(5.42):.3g}"
    (0.5, '2.98e-08')
    """
    return math.erfc(x / math.sqrt(2)) / 2


def missing(shift: float, coordinates: int, reach: float = REACH) -> float:
    """Returns the probability that noise without a client cannot make a release.

    A client moves the sum by a vector v. The probability is at most the sum over
    coordinates of `P(|N + v_i| > reach)`, which is convex in the squares of the v_i if
    the length of v is below reach - 1. It is then largest with v in one coordinate.

    Args:
      shift: the length of v, in standard deviations of the noise.
      coordinates: the length of the release.
      reach: the largest size of the noise, in standard deviations.

    Returns:
      A probability; 1 for a shift above reach - 1, where that argument ends.
    """
    if shift > reach - 1:
        return 1.0
    worst = upper(reach - shift) + upper(reach + shift)
    return min(1.0, worst + (coordinates - 1) * 2 * upper(reach))


def places_for(population: int, expected: float) -> int:
    """Returns the places of a Poisson cohort: larger ones have a probability of `CUT`.

    The cohort has `expected` clients on average, and never more than the `population`.
    """
    from scipy import stats  # takes half a second to import

    rate = expected / population
    return min(population, int(stats.binom.isf(CUT, population, rate)) + 1)


def cut_chance(population: int, expected: float) -> float:
    """Returns the probability that the others leave one client no place in a cohort.

    Or the last place, which a client has a little more often than under Poisson
    sampling.
    """
    from scipy import stats

    places = places_for(population, expected)
    if places == population:
        return 0.0
    return float(stats.binom.sf(places - 2, population, expected / population))
