"""How fine integers are, and how long a message of them may be."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_sketch.privacy import lattice
from fl_sketch.privacy.lattice import Integers
from tests.refusals import refused

pytestmark = pytest.mark.fast


@given(st.integers(8, 32), st.integers(1, 500), st.floats(0, 50), st.integers(0, 20))
def test_sums_fit_their_bits_but_for_four_deviations(bits, most, z, power):
    sums, length = Integers(bits, most, smallest=most), 2**power
    scale = lattice.scale(sums, z, length)
    variance = (most * scale) ** 2 / length + most / 4 + (z * scale) ** 2
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
    beta = math.exp(-0.5)
    root = math.sqrt(2 * math.log(1 / beta))
    likely = scale**2 + length / 4 + root * (scale + math.sqrt(length) / 2)
    assert lattice.square(scale, length) == math.floor(likely)
    assert likely < (scale + math.sqrt(length)) ** 2  # the paper's other bound


def test_a_given_step_is_taken():
    sums = Integers(16, 10, granularity=0.01)
    assert lattice.scale(sums, 3.0, 64) == 100
    assert lattice.draw_variance(sums._replace(smallest=4), 3.0, 100) == 300**2 / 4


@pytest.mark.parametrize(
    ("changes", "z", "words"),
    [
        ({"bits": 7}, 1.0, "bits=7"),
        ({"bits": 33}, 1.0, "bits=33"),
        ({"most": 0}, 1.0, "most=0"),
        ({"granularity": -0.1}, 1.0, "granularity=-0.1"),
        ({"granularity": 1e-6}, 1.0, "granularity=1e-06"),
        ({"granularity": 1e-4}, 100.0, "granularity=0.0001"),
    ],
)
def test_impossible_integers_are_refused(changes, z, words):
    with refused(words):
        lattice.require(Integers(16, 10)._replace(**changes), z)


@pytest.mark.parametrize(
    ("sums", "z", "length", "words"),
    [
        (Integers(8, 1000), 1.0, 64, "bits=8"),
        (Integers(16, 10, granularity=2.0), 1.0, 64, "bits=16"),
        (Integers(16, 10**6, granularity=1e-3), 1.0, 1, "granularity=0.001"),
    ],
)
def test_messages_that_do_not_fit_are_refused(sums, z, length, words):
    with refused(words):
        lattice.require_length(sums, z, length)
