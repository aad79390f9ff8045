"""A stored operator is the operator under its key, and nothing else."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import sketch
from fl_sketch.algorithms import catalog
from tests.channels.rounds import quickly

KEY, OTHER = jax.random.key(1), jax.random.key(2)
TREE = {"w": jax.random.normal(KEY, (4, 6)), "b": jnp.ones(3)}
OPERATORS = {
    "gaussian": sketch.gaussian(66),  # more rows than are made together
    "srht": sketch.srht(8),
    "count_sketch": sketch.count_sketch(cols=6, rows=3),  # read by medians
}


@pytest.mark.parametrize("name", OPERATORS)
def test_it_is_the_operator_under_its_key_whatever_key_it_is_given(name):
    op = OPERATORS[name]
    stored = sketch.materialized(op, KEY)
    assert stored.fixed_key and stored.size(TREE) == op.size(TREE)

    @quickly
    def both(key, other, tree):
        message, made = op.apply(key, tree), []
        for each, own in ((stored, other), (op, key)):
            reads = each.transpose, each.estimate
            backs = [read(own, message, tree) for read in reads]
            made.append((each.apply(own, tree), backs, each.resize(4).size(tree)))
        return made

    chex.assert_trees_all_close(*both(KEY, OTHER, TREE), rtol=1e-5, atol=1e-5)


def test_configs_may_ask_for_it():
    options = {"compression": 4.0, "rows": 1, "layout": "whole", "stored": True}
    op, x = catalog.build_sketch("gaussian", 40, **options), jnp.arange(40.0)
    assert op.fixed_key and op.size(40) == 10
    np.testing.assert_array_equal(op.apply(KEY, x), op.apply(OTHER, x))


def test_a_config_that_stores_a_count_sketch_reads_its_rows_by_medians():
    options = {"compression": 2.0, "rows": 3, "layout": "whole", "stored": True}
    op, x = catalog.build_sketch("count_sketch", 24, **options), jnp.arange(24.0)
    message = op.apply(KEY, x)
    rows = [
        3 * op.transpose(KEY, jnp.zeros_like(message).at[row].set(message[row]), x)
        for row in range(3)
    ]
    assert not np.allclose(np.mean(rows, axis=0), np.median(rows, axis=0))
    read = op.estimate(KEY, message, x)
    np.testing.assert_allclose(read, np.median(rows, axis=0), rtol=1e-5, atol=1e-5)


def test_a_program_holds_the_matrix_once():
    op, x = sketch.materialized(sketch.gaussian(4), KEY), jnp.arange(9.0)

    def energy(x):
        return jnp.sum(op.estimate(KEY, op.apply(KEY, x), x) ** 2)

    text = jax.jit(jax.value_and_grad(energy)).lower(x).compile().as_text()
    assert len(re.findall(r"= f32\[4,9\]\S* constant\(", text)) == 1
