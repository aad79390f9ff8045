"""Tables of integer noise hold the chances that the accountant counts, exactly."""

import decimal
import fractions
import math

import numpy as np
import pytest
from scipy import stats

from fl_sketch.privacy import integer_tables
from fl_sketch.privacy.lattice import KINDS
from tests.refusals import refused

pytestmark = pytest.mark.fast

VARIANCES = (0.25, 4.0, 123.456, 1e4)
UNIT = 1 << integer_tables.CHANCE


def by_series(variance, sizes):
    """Returns I_k(mu) of some k, by its series in fractions."""
    half, found = fractions.Fraction(variance) / 2, []
    for k in sizes:
        term = half**k / math.factorial(k)
        total, m = term, 0
        while term > total / 10**60:
            m += 1
            term *= half**2 / (m * (m + k))
            total += term
        found.append(total)
    return found


def by_exponentials(variance, sizes):
    """Returns exp(-k^2 / (2 sigma^2)) of some k, by Python's decimals."""
    with decimal.localcontext(prec=80):
        exact = [
            (-decimal.Decimal(k * k) / (2 * decimal.Decimal(variance))).exp()
            for k in sizes
        ]
    return [fractions.Fraction(value) for value in exact]


@pytest.mark.parametrize("variance", [0.25, 4.0, 31.7])
@pytest.mark.parametrize("kind", KINDS)
def test_chances_are_those_of_the_formulas(kind, variance):
    weights = integer_tables.weights(kind, variance)
    sizes = range(len(weights))
    oracle = {"skellam": by_series, "discrete_gaussian": by_exponentials}[kind]
    masses = [p * (2 if k else 1) for k, p in enumerate(oracle(variance, sizes))]
    whole = sum(masses)
    wrong = [
        abs(weight - UNIT * mass / whole)
        for weight, mass in zip(weights, masses, strict=True)
    ]
    assert max(wrong[1:]) < 1.01
    assert wrong[0] < len(weights) + 2 ** (integer_tables.CHANCE - integer_tables.REST)


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_chances_add_up_and_reach_beyond_twelve_deviations(kind, variance):
    """And no size in between is impossible."""
    weights = integer_tables.weights(kind, variance)
    assert sum(weights) == UNIT and min(weights) > 0
    assert len(weights) > 12 * variance**0.5
    rarer = weights[1:]
    assert rarer == sorted(rarer, reverse=True)


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_variance_is_that_of_the_noise(kind, variance):
    weights = integer_tables.weights(kind, variance)
    found = sum(k * k * weight for k, weight in enumerate(weights)) / UNIT
    if kind == "skellam":
        assert found == pytest.approx(variance, rel=1e-12)
        probability = stats.skellam.pmf(3, variance / 2, variance / 2)
        assert weights[3] / UNIT == pytest.approx(2 * probability, rel=1e-6)
    else:  # the sigma^2 of a discrete Gaussian is above its variance, by very little
        assert variance * 0.85 < found <= variance * (1 + 1e-12)


@pytest.mark.parametrize("variance", VARIANCES)
def test_columns_add_up_to_the_chances_to_the_unit(variance):
    weights = integer_tables.weights("skellam", variance)
    table = integer_tables.table("skellam", variance)
    limits = [int.from_bytes(row.astype(">u4").tobytes()) for row in table.limits.T]
    given = [0] * len(limits)
    for own, (limit, other) in enumerate(zip(limits, table.others, strict=True)):
        given[own] += (1 << 128) if own == other else limit
        given[other] += 0 if own == other else (1 << 128) - limit
    each = 1 << (len(limits) - 1).bit_length() + 1
    assert given == [weight * each for weight in weights] + [0] * (
        len(limits) - len(weights)
    )
    assert table.numbers == len(weights)


def test_what_an_accountant_charges_covers_what_a_table_lacks():
    """Rounded chances, and what lies beyond its end."""
    from fl_sketch.privacy import lattice, tails

    weights = integer_tables.weights("discrete_gaussian", lattice.LARGEST**2)
    assert len(weights) / UNIT + 2.0**-integer_tables.REST < tails.TABLE


@pytest.mark.parametrize("variance", [0.0, -1.0, math.inf, math.nan])
def test_impossible_noise_is_refused(variance):
    with refused("variance"):
        integer_tables.weights("skellam", variance)
    with refused("gausian", "Did you mean"):
        integer_tables.weights("discrete_gausian", 1.0)


def test_tables_are_made_once():
    first = integer_tables.table("skellam", 9.0)
    assert integer_tables.table("skellam", 9.0) is first
    assert first.limits.dtype == np.uint32 and first.others.dtype == np.int32
