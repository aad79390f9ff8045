"""Sketching leaf by leaf: the budget is split."""

import chex
import jax
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fl_sketch import sketch
from tests.channels.rounds import quickly
from tests.operators import OPERATORS

KEY, DRAWS = jax.random.key(0), 2000
TREE = {
    "dense": {
        "kernel": np.arange(60, dtype=np.float32).reshape(12, 5),
        "bias": np.ones(5, np.float32),
    },
    "scale": np.float32(2.0),
}


@given(
    budget=st.integers(1, 500),
    rows=st.sampled_from([1, 3, 5]),
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=6),
)
@settings(max_examples=40, deadline=None, derandomize=True, phases=[Phase.generate])
def test_no_leaf_is_sent_in_more_numbers_than_it_has(budget, rows, sizes):
    tree = [jax.ShapeDtypeStruct((size,), np.float32) for size in sizes]
    cols = max(1, budget // rows)
    op, budget = sketch.leaf_by_leaf(sketch.count_sketch(cols, rows)), cols * rows
    sent = [part.size for part in jax.eval_shape(op.zeros, tree)]
    assert op.size(tree) == sum(sent)
    if budget >= sum(sizes):
        assert sent == sizes
    for size, count in zip(sizes, sent, strict=True):
        share = budget * size / sum(sizes)
        least = min(rows, size)  # of a share below one number a row
        assert least <= count <= min(size, max(least, share) + 1e-9)
        assert count > share - rows or count == size


@pytest.mark.parametrize("name", ["srht", "count_sketch_x5"])
def test_every_leaf_has_its_own_unbiased_sketch(name):
    op = sketch.leaf_by_leaf(OPERATORS[name].make(20))

    @quickly
    def everything(keys, tree):
        message = op.apply(KEY, tree)
        draw = jax.vmap(lambda key: op.transpose(key, op.apply(key, tree), tree))
        return message, draw(keys)

    made = everything(jax.random.split(KEY, DRAWS), TREE)
    message, many = jax.tree.map(np.asarray, made)
    assert len(message) == 3
    assert op.size(TREE) == sum(part.size for part in message)
    assert [z.shape for z in op.zeros(TREE)] == [part.shape for part in message]

    def unbiased(samples, truth):
        spread = samples.std(axis=0) / DRAWS**0.5
        assert np.all(np.abs(samples.mean(axis=0) - truth) <= 4.5 * spread + 1e-3)

    jax.tree.map(unbiased, many, TREE)


def test_a_budget_for_everything_sends_everything():
    op = sketch.leaf_by_leaf(sketch.count_sketch(100))
    back = op.transpose(KEY, op.apply(KEY, TREE), TREE)
    chex.assert_trees_all_equal(back, TREE)


def test_leaves_do_not_share_hashes_and_rounds_do_so_of_one_key():
    ramp = np.arange(40, dtype=np.float32)
    op = sketch.leaf_by_leaf(sketch.fixed_key(sketch.count_sketch(20), KEY))
    for key in (KEY, jax.random.key(1)):
        one, two = sketch.leaf_by_leaf(sketch.count_sketch(20)).apply(key, [ramp, ramp])
        assert not np.array_equal(one, two)
    assert op.fixed_key
    first, later = (op.apply(jax.random.key(n), [ramp, ramp]) for n in (1, 2))
    chex.assert_trees_all_equal(first, later)


def test_an_estimate_that_is_the_adjoint_stays_it():
    """So error feedback, which an unbiased estimate would let grow, refuses it."""
    for of in (sketch.leaf_by_leaf, lambda op: sketch.sharded(op, 2)):
        linear, median = of(sketch.gaussian(5)), of(sketch.count_sketch(5, rows=3))
        assert linear.estimate is linear.transpose
        assert median.estimate is not median.transpose
