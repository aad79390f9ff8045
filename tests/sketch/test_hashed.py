"""Count sketches and sparse embeddings have the structure of their definitions."""

import jax
import numpy as np
import pytest

from fl_sketch import sketch
from tests.channels.rounds import quickly
from tests.oracles import count_sketch as oracle

KEY = jax.random.key(3)
DRAWS = 20_000


def matrix(op, d, key=KEY):
    eye = np.eye(d, dtype=np.float32)
    rows = quickly(jax.vmap(op.apply, (None, 0)))(key, eye)
    return np.moveaxis(np.asarray(rows), 0, -1)  # (rows, cols, d), or (b, d)


def test_a_column_has_one_sign_in_each_row():
    rows = matrix(sketch.count_sketch(16, rows=3), 70)
    assert np.all((rows != 0).sum(axis=1) == 1)
    np.testing.assert_allclose(np.abs(rows[rows != 0]), 3**-0.5, rtol=1e-6)
    assert {*np.sign(rows[rows != 0])} == {-1, 1}


@pytest.mark.parametrize("d", [3, 24, 70])
def test_an_embedding_has_its_nonzeros_in_every_column(d):
    r = matrix(sketch.sparse_embedding(12, 4), d)
    assert np.all((r != 0).sum(axis=0) == 4)
    np.testing.assert_allclose(np.abs(r[r != 0]), 0.5)


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_apply_and_median_follow_the_definition(rows):
    d, cols = 61, 16
    op = sketch.count_sketch(cols, rows=rows)
    r = matrix(op, d) * rows**0.5
    where, signs = np.abs(r).argmax(axis=1), r.sum(axis=1).round()
    x = np.random.default_rng(8).normal(size=d).astype(np.float32)

    @quickly
    def there_and_back(x):
        s = op.apply(KEY, x)
        return s, op.estimate(KEY, s, d)

    s, estimate = there_and_back(x)
    table = oracle.apply(x, where, signs, cols)
    np.testing.assert_allclose(s * rows**0.5, table, atol=1e-5)
    np.testing.assert_allclose(estimate, oracle.query(table, where, signs), atol=1e-5)
