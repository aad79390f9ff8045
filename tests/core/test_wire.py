"""Messages have the bytes that are counted; tests/fuzz has those that come back."""

import jax
import numpy as np
import pytest

from fl_sketch.core import wire
from fl_sketch.core.protocols import Field
from fl_sketch.core.wire import Chosen
from tests.operators import encoded

pytestmark = pytest.mark.fast


def test_special_floats_come_back():
    values = np.array([np.nan, np.inf, -0.0, 1e-45], np.float32)
    assert len(encoded(values)) == 16


LENGTHS = (0, 1, 7, 8, 9, 2**32 - 1, 2**32, 2**35 - 7, 2**35, 2**40 - 1)


@pytest.mark.parametrize("bits", LENGTHS)
def test_bytes_are_exact_beyond_32_bits(bits):
    size = -(-bits // 8)
    assert wire.byte_count(jax.jit(lambda: wire.traced_bytes(bits))()) == size
    counts = np.array([0, 1, 3, 2**20 + 1])
    many = wire.traced_bytes(bits, lambda each: each * counts)
    assert wire.byte_count(many).tolist() == [size * int(n) for n in counts]


def test_lengths_that_depend_on_the_round_add_up_and_are_chosen_by_it():
    @jax.jit
    def sent(first, second):
        bits = 3 + Chosen(first, (5, 2**36)) + Chosen(second, (0, 8, 2**33)) + 1
        return wire.traced_bytes(bits, lambda each: each + 1)

    for first, a in ((False, 5), (True, 2**36)):
        for second, b in enumerate((0, 8, 2**33)):
            expected = -(-(4 + a + b) // 8) + 1
            assert wire.byte_count(sent(first, second)) == expected


def test_what_does_not_fit_is_refused():
    field = Field(2, 3, "uint")
    for numbers in ([1, 8], [1]):
        with pytest.raises(ValueError):
            wire.encode([field], [np.array(numbers)])
    with pytest.raises(ValueError):
        wire.decode([field], b"ab")
