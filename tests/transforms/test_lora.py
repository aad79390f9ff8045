"""Low-rank adaptation of arrays: their shapes as matrices, first factors, and sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.transforms import lora

pytestmark = pytest.mark.fast

KEY = jax.random.key(0)
SHAPES = [(6, 4), (4, 6), (5, 5), (8, 2, 4), (2, 4, 8), (3, 3, 4, 16), (7, 7, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_matrix_has_all_numbers_in_their_order_and_the_longest_shorter_side(shape):
    rows, columns = lora.matrix_shape(shape)
    assert rows * columns == np.prod(shape)
    cuts = [np.prod(shape[:place]) for place in range(1, len(shape))]
    assert min(rows, columns) == max(min(cut, np.prod(shape) // cut) for cut in cuts)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 2])
def test_factors_begin_at_zero_with_orthonormal_rows_of_the_shorter_side(shape, rank):
    rows, columns = lora.matrix_shape(shape)
    first = lora.factors(KEY, "x/w", shape, rank)
    assert [*first] == ["x/w/lora_a", "x/w/lora_b"]
    a, b = first.values()
    assert {*a.shape} | {*b.shape} == {rows, columns, rank}
    assert not b.any() and rank in a.shape
    a = a if a.shape == (rank, min(rows, columns)) else a.T
    np.testing.assert_allclose(a @ a.T, np.eye(rank), atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_merged_is_the_array_and_the_product(shape):
    rows, columns = lora.matrix_shape(shape)
    w = jax.random.normal(KEY, shape)
    first = lora.factors(KEY, "w", shape, 2)
    moved = {name: leaf + 0.1 for name, leaf in first.items()}
    frozen = {"w": w, "w/lora_scale": np.float32(3), "other": jnp.ones(2)}
    left, right = moved.values()
    if left.shape[0] != rows or rows > columns:
        left, right = right, left
    expected = w + 3 * (left @ right).reshape(shape)
    whole = lora.merged(moved | {"more": jnp.zeros(1)}, frozen)
    assert {*whole} == {"w", "other", "more"}
    np.testing.assert_allclose(whole["w"], expected, rtol=1e-5, atol=1e-6)
    in_numpy = lora.merged(*jax.tree.map(np.asarray, (moved, frozen)))
    np.testing.assert_allclose(in_numpy["w"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(lora.merged(first, frozen)["w"], w)


def test_an_array_keeps_its_type():
    w = jnp.ones((3, 4), jnp.bfloat16)
    first = lora.factors(KEY, "w", w.shape, 1)
    frozen = {"w": w, "w/lora_scale": np.float32(1)}
    assert lora.merged(first, frozen)["w"].dtype == jnp.bfloat16


def test_arrays_of_a_model_may_have_the_names_of_factors():
    own = {"w/kernel": np.ones((2, 3)), "w/lora_a": np.ones(2), "w/lora_b": np.ones(3)}
    assert lora.merged({"w/lora_a": own["w/lora_a"]}, own).keys() == own.keys()
