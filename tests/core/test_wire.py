"""Messages survive the wire bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fl_sketch.core import wire
from fl_sketch.core.protocols import Field
from fl_sketch.core.wire import Chosen
from tests.operators import OPERATORS, build, encoded

pytestmark = pytest.mark.fast


@given(
    parts=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 32), st.booleans()), max_size=5
    ),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, derandomize=True, phases=[Phase.generate])
def test_numbers_come_back(parts, seed):
    rng = np.random.default_rng(seed)
    fields, arrays = [], []
    for count, bits, is_float in parts:
        if is_float:
            fields.append(Field(count, 32, "float"))
            arrays.append(rng.normal(size=count).astype(np.float32))
        else:
            fields.append(Field(count, bits, "uint"))
            arrays.append(rng.integers(0, 2**bits, count, np.uint64).astype(np.uint32))
    fields.append(Field(1, 3, "uint"))
    arrays.append(np.array([5]))
    data = wire.encode(fields, arrays)
    assert len(data) == -(-wire.size_in_bits(fields) // 8)
    for sent, received in zip(arrays, wire.decode(fields, data), strict=True):
        np.testing.assert_array_equal(sent, received)


def test_special_floats_come_back():
    values = np.array([np.nan, np.inf, -0.0, 1e-45], np.float32)
    assert len(encoded(values)) == 16


@pytest.mark.parametrize("name", OPERATORS)
def test_a_sketch_takes_four_bytes_a_number(name):
    op, key = build(name, 8, 30), jax.random.key(0)
    s = op.apply(key, jnp.arange(30.0))
    assert len(encoded(s)) == 4 * op.size(30)


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
    with pytest.raises(ValueError, match=r"below 2\*\*3, got 8"):
        wire.encode([field], [np.array([1, 8])])
    with pytest.raises(ValueError, match="Expected 2 numbers"):
        wire.encode([field], [np.array([1])])
    with pytest.raises(ValueError, match="Expected a message of 1 bytes, got 2"):
        wire.decode([field], b"ab")
