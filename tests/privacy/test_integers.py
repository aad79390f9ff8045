"""How fine integers are and how long, their tables of chances, and draws from these."""

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fl_sketch.core import chacha
from fl_sketch.privacy import accounting, integer_noise, lattice
from fl_sketch.privacy.lattice import Integers
from tests.refusals import refused
from tests.simulation import compiled

KEY = chacha.key_of(bytes(range(32)))
UNIT = 1 << integer_noise.CHANCE
VARIANCES = (0.25, 4.0, 123.456, 1e4)
MANY = 2**20


@given(st.integers(1, 10**9))
def test_a_message_is_a_tenth_longer_at_most(numbers):
    length = lattice.padded(numbers)
    assert numbers <= length <= lattice.PADDING * numbers
    block = lattice.block(length)
    assert block == 1 << block.bit_length() - 1 and block <= length < 2 * block


@given(st.integers(8, 32), st.integers(1, 500), st.floats(0, 50), st.integers(1, 10**6))
def test_sums_fit_their_bits_but_for_four_deviations(bits, most, z, length):
    """The mean square of a mixed number is that of its block at most."""
    sums = Integers(bits, most, smallest=most)
    scale = lattice.scale(sums, z, length)
    block = lattice.block(length)
    variance = (most * scale) ** 2 / block + most / 4 + (z * scale) ** 2
    half = 2.0 ** (bits - 1)
    if scale:
        assert lattice.DEVIATIONS * math.sqrt(variance) <= half * (1 + 1e-9)
    else:
        assert half**2 <= lattice.DEVIATIONS**2 * most / 4
    assert scale <= lattice.FINEST
    assert z * scale / math.sqrt(most) <= lattice.LARGEST * (1 + 1e-9)


def test_all_noise_of_a_large_cohort_fits_too():
    few = lattice.scale(Integers(12, most=100, smallest=25), 10.0, 1024)
    same = lattice.scale(Integers(12, most=100, smallest=100), 20.0, 1024)
    assert few == pytest.approx(same)


def test_the_length_of_rounded_messages_is_the_papers():
    scale, length = 10.0, 400
    root = math.sqrt(2 * math.log(1 / math.exp(-0.5)))
    likely = scale**2 + length / 4 + root * (scale + math.sqrt(length) / 2)
    assert lattice.square(scale, length) == math.floor(likely)
    assert likely < (scale + math.sqrt(length)) ** 2  # the paper's other bound


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"bits": 7}, "bits=7"), ({"bits": 33}, "bits=33"), ({"most": 0}, "most=0")],
)
def test_impossible_integers_are_refused(changes, words):
    with refused(words):
        lattice.require(Integers(16, 10)._replace(**changes))
    with refused("bits=8"):
        lattice.require_length(Integers(8, 1000), 1.0, 64)


def bessel(variance, sizes):
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


@pytest.mark.parametrize("variance", [0.25, 4.0, 31.7])
def test_chances_are_those_of_the_formula(variance):
    weights = integer_noise.weights(variance)
    exact = bessel(variance, range(len(weights)))
    masses = [p * (2 if k else 1) for k, p in enumerate(exact)]
    whole = sum(masses)
    wrong = [
        abs(weight - UNIT * mass / whole)
        for weight, mass in zip(weights, masses, strict=True)
    ]
    assert max(wrong[1:]) < 1.01
    assert wrong[0] < len(weights) + 2 ** (integer_noise.CHANCE - integer_noise.REST)


@pytest.mark.parametrize("variance", VARIANCES)
def test_all_chances_add_up_have_the_variance_and_reach_twelve_deviations(variance):
    """And no size in between is impossible."""
    weights = integer_noise.weights(variance)
    assert sum(weights) == UNIT and min(weights) > 0
    assert len(weights) > 12 * variance**0.5
    assert weights[1:] == sorted(weights[1:], reverse=True)
    found = sum(k * k * weight for k, weight in enumerate(weights)) / UNIT
    assert found == pytest.approx(variance, rel=1e-12)


@pytest.mark.parametrize("variance", VARIANCES)
def test_columns_add_up_to_the_chances_to_the_unit(variance):
    weights, table = integer_noise.weights(variance), integer_noise.table(variance)
    limits = [int.from_bytes(row.astype(">u4").tobytes()) for row in table.limits.T]
    given = [0] * len(limits)
    for own, (limit, other) in enumerate(zip(limits, table.others, strict=True)):
        given[own] += (1 << 128) if own == other else limit
        given[other] += 0 if own == other else (1 << 128) - limit
    each = 1 << (len(limits) - 1).bit_length() + 1
    rest = [0] * (len(limits) - len(weights))
    assert given == [weight * each for weight in weights] + rest
    assert table.numbers == len(weights)


@pytest.mark.slow
def test_what_an_accountant_charges_covers_what_a_table_lacks():
    """Rounded chances, and what lies beyond its end."""
    longest = len(integer_noise.weights(lattice.LARGEST**2))
    assert longest / UNIT + 2.0**-integer_noise.REST < accounting.TABLE


@pytest.mark.parametrize("variance", [0.0, -1.0, math.inf, math.nan])
def test_impossible_noise_is_refused(variance):
    with refused("variance"):
        integer_noise.weights(variance)


def chance(sizes, chances, cells=200):
    """Returns the p value of sizes in cells that are about equally likely."""
    below = np.cumsum(chances)
    ends = np.unique(np.searchsorted(below, np.linspace(0, 1, cells + 1)[1:-1]))
    expected = np.diff(np.concatenate([[0], below[ends], [1]]))
    counted = np.bincount(np.searchsorted(ends, sizes), minlength=expected.size)
    many = expected * sizes.size > 10
    few = [counted[~many].sum()], [expected[~many].sum() * sizes.size + 1e-9]
    counted = np.concatenate([counted[many], few[0]])
    expected = np.concatenate([expected[many] * sizes.size, few[1]])
    return stats.chisquare(counted, expected * counted.sum() / expected.sum()).pvalue


@pytest.mark.slow
@pytest.mark.parametrize("scale", (0.5, 5.0, 1000.0, 2.0**14))
def test_a_million_numbers_fit_their_table(scale):
    draw = compiled(lambda key: integer_noise.noise(key, (MANY,), scale**2))
    numbers = np.asarray(draw(KEY)).astype(np.int64)
    weights = [weight / UNIT for weight in integer_noise.weights(scale**2)]
    assert chance(np.abs(numbers), np.array(weights)) > 1e-4
    assert abs(np.mean(numbers**2) / scale**2 - 1) < 5 * np.sqrt(2 / MANY)
    assert abs(np.mean(np.sign(numbers))) < 5 / np.sqrt(MANY)


def test_each_number_of_a_batch_is_drawn_as_if_it_were_alone():
    keys = jax.random.split(KEY, 3)

    def draw(key):
        return integer_noise.noise(key, (2, 50), 30.0)

    together = compiled(jax.vmap(draw))(keys)
    for key, numbers in zip(keys, together, strict=True):
        np.testing.assert_array_equal(compiled(draw)(key), numbers)


@pytest.mark.parametrize("rest", [0, 2**32 - 1])
def test_further_bits_decide_where_the_first_are_equal(rest, monkeypatch):
    table = integer_noise.table(4.0)
    column = int(np.flatnonzero(table.others != np.arange(table.others.size))[0])
    bits = (table.others.size - 1).bit_length()
    where = column << (31 - bits)

    def words(key, shape, dtype):
        del key
        if shape[0] == 3:
            return jnp.full(shape, rest, dtype)
        first = [np.full(shape[1], where), np.full(shape[1], table.limits[0, column])]
        return jnp.array(first, dtype)

    monkeypatch.setattr(integer_noise.jax.random, "bits", words)
    with jax.disable_jit():
        (number,) = integer_noise.drawn(KEY, 1, table).tolist()
    assert number == (column if rest == 0 else table.others[column])
