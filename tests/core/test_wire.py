"""Messages survive the wire bit for bit."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fl_sketch import sketch
from fl_sketch.core import wire
from fl_sketch.core.protocols import Field
from tests.operators import OPERATORS, build

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
    fields = wire.float_fields(values)
    (back,) = wire.decode(fields, wire.encode(fields, [values]))
    assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize("name", OPERATORS)
def test_a_sketch_takes_four_bytes_a_number(name):
    op, key = build(name, 8, 30), jax.random.key(0)
    s = op.apply(key, jnp.arange(30.0))
    data = wire.encode_floats(s)
    assert len(data) == 4 * op.size(30)
    np.testing.assert_array_equal(wire.decode_floats(data, op.zeros(30)), s)


def test_a_leaf_by_leaf_message_takes_four_bytes_a_number():
    tree = {"w": jnp.ones((5, 6)), "b": jnp.ones(6)}
    op, key = sketch.leaf_by_leaf(sketch.count_sketch(9)), jax.random.key(0)
    s = op.apply(key, tree)
    data = wire.encode_floats(s)
    assert len(data) == 4 * op.size(tree)
    chex.assert_trees_all_equal(wire.decode_floats(data, s), s)


def test_what_does_not_fit_is_refused():
    field = Field(2, 3, "uint")
    with pytest.raises(ValueError, match=r"below 2\*\*3, got 8"):
        wire.encode([field], [np.array([1, 8])])
    with pytest.raises(ValueError, match="Expected 2 numbers"):
        wire.encode([field], [np.array([1])])
    with pytest.raises(ValueError, match="Expected a message of 1 bytes, got 2"):
        wire.decode([field], b"ab")
