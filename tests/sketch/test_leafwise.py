"""Sketching leaf by leaf: the budget is split."""

import chex
import jax
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fl_sketch import sketch
from fl_sketch.sketch.leafwise import split_budget
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
# One of each way to take a leaf's share; how others sketch a leaf is their own law.
SIZED = ["srht", "count_sketch_x5", "sparse_embedding_two"]


@given(
    budget=st.integers(1, 500),
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=6),
)
@settings(deadline=None, derandomize=True, phases=[Phase.generate])
def test_shares_are_in_proportion_and_never_empty(budget, sizes):
    shares = split_budget(budget, sizes)
    assert all(1 <= share <= size for share, size in zip(shares, sizes, strict=True))
    assert sum(shares) <= budget + len(sizes)
    for share, size in zip(shares, sizes, strict=True):
        assert share <= 1 or share <= budget * size / sum(sizes) + 1e-9
    if budget >= sum(sizes):
        assert shares == sizes


@pytest.mark.parametrize("name", SIZED)
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
    zeros = op.zeros(TREE)
    assert [z.shape for z in zeros] == [part.shape for part in message]

    def unbiased(samples, truth):
        spread = samples.std(axis=0) / DRAWS**0.5
        assert np.all(np.abs(samples.mean(axis=0) - truth) <= 4.5 * spread + 1e-3)

    jax.tree.map(unbiased, many, TREE)


def test_a_budget_for_everything_sends_everything():
    op = sketch.leaf_by_leaf(sketch.count_sketch(100))
    back = op.transpose(KEY, op.apply(KEY, TREE), TREE)
    chex.assert_trees_all_equal(back, TREE)


def test_leaves_do_not_share_hashes():
    ramp = np.arange(40, dtype=np.float32)
    twins = {"a": ramp, "b": ramp}
    one, two = sketch.leaf_by_leaf(sketch.count_sketch(20)).apply(KEY, twins)
    assert not np.array_equal(one, two)


def test_what_it_needs_to_know_is_asked_for():
    op = sketch.leaf_by_leaf(sketch.count_sketch(20))
    for call, error, word in (
        (op.zeros, ValueError, "like"),
        (lambda: op.zeros(40), TypeError, "like=40"),
        (lambda: sketch.leaf_by_leaf(sketch.identity()), ValueError, "like"),
    ):
        with pytest.raises(error, match=word):
            call()


@pytest.mark.parametrize("leaves", [False, True])
def test_what_is_called_by_itself_is_compiled_once(leaves):
    op = sketch.count_sketch(20)
    op = sketch.leaf_by_leaf(op) if leaves else op

    def there_and_back(key, tree):
        message = op.apply(key, tree)
        return op.estimate(key, message, tree), op.transpose(key, message, tree)

    there_and_back(KEY, TREE)
    key, tree = jax.random.key(1), jax.tree.map(np.cos, TREE)
    with jax.no_tracing():
        there_and_back(key, tree)


@pytest.mark.parametrize("name", ["fixed_key", "leaf_by_leaf", "sharded"])
def test_an_estimate_that_is_the_adjoint_stays_it(name):
    """So error feedback, which an unbiased estimate would let grow, refuses it."""
    of = {
        "fixed_key": lambda op: sketch.fixed_key(op, jax.random.key(0)),
        "leaf_by_leaf": sketch.leaf_by_leaf,
        "sharded": lambda op: sketch.sharded(op, 2),
    }[name]
    linear, median = of(sketch.gaussian(5)), of(sketch.count_sketch(5, rows=3))
    assert linear.estimate is linear.transpose
    assert median.estimate is not median.transpose
