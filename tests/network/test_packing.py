"""Packed numbers are the bytes of the wire."""

import numpy as np
import pytest

from fl_sketch.core import wire
from fl_sketch.core.protocols import Field
from fl_sketch.network import packing
from tests.refusals import refused

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("bits", range(1, 33))
def test_numbers_are_packed_as_on_the_wire(bits):
    rng = np.random.default_rng(bits)
    for length in (1, 7, 8, 9, 1001):
        numbers = rng.integers(0, 2**bits, length, np.uint64).astype(np.uint32)
        fields = (Field(length, bits, "uint"),)
        data = packing.packed(numbers, bits)
        assert data == wire.encode(fields, (numbers,))
        assert len(data) == packing.size(length, bits)
        np.testing.assert_array_equal(packing.unpacked(data, length, bits), numbers)


@pytest.mark.parametrize(
    "numbers, parts",
    [
        (np.zeros(3, np.uint32), ("2 unsigned", "(3,)")),
        (np.zeros((2, 1), np.uint32), ("2 unsigned", "(2, 1)")),
        (np.zeros(2, np.int32), ("unsigned", "int32")),
        (np.zeros(2, np.float32), ("unsigned", "float32")),
        (np.array([0, 256], np.uint32), ("2**8", 256)),
    ],
)
def test_numbers_that_do_not_fit_are_refused(numbers, parts):
    with refused(*parts):
        packing.require(numbers, 2, 8)
