"""Lengths are exact where 32 bits are not enough."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.core import lengths
from fl_sketch.core.lengths import number, whole_bytes, wide

pytestmark = pytest.mark.fast

LENGTHS = (0, 1, 7, 8, 9, 2**31 - 1, 2**32 - 8, 2**32 - 1, 2**32, 2**35 + 3, 2**40 - 1)


@pytest.mark.parametrize("bits", LENGTHS)
def test_bytes_of_a_length_that_is_traced_are_those_of_the_integer(bits):
    expected = -(-bits // 8)
    assert number(whole_bytes(bits)) == expected
    assert number(jax.jit(whole_bytes)(wide(bits))) == expected
    if bits < 2**32:
        assert number(jax.jit(whole_bytes)(jnp.uint32(bits))) == expected


def test_arrays_of_the_host_keep_their_64_bits():
    np.testing.assert_array_equal(number(wide(np.array(LENGTHS))), LENGTHS)


@pytest.mark.parametrize("one", LENGTHS)
@pytest.mark.parametrize("other", LENGTHS)
def test_sums_carry(one, other):
    found = [wide(one) + other, one + wide(other), wide(one) + wide(other)]
    assert [number(x) for x in found] == [one + other] * 3


def test_one_of_two_lengths_is_chosen_and_rounds_have_theirs():
    flags = jnp.array([True, False])
    both = jax.vmap(lambda flag: lengths.either(flag, 2**36, 5))(flags)
    np.testing.assert_array_equal(number(both), [2**36, 5])


@pytest.mark.parametrize("one", LENGTHS)
def test_a_length_so_many_times_is_that_many_of_it(one):
    counts = np.array([0, 1, 2, 3, 1000, 2**20 + 1])
    found = jax.jit(lambda length: lengths.times(length, counts))(wide(one))
    np.testing.assert_array_equal(number(found), [one * int(n) for n in counts])
