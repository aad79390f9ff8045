"""Count sketches and sparse embeddings have the structure of their definitions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.linalg import clarkson_woodruff_transform

from fl_sketch import sketch
from tests.channels.rounds import quickly
from tests.oracles import count_sketch as oracle

KEY = jax.random.key(3)
DRAWS = 20_000


def matrix(op, d, key=KEY):
    eye = np.eye(d, dtype=np.float32)
    rows = quickly(jax.vmap(op.apply, (None, 0)))(key, eye)
    return np.moveaxis(np.asarray(rows), 0, -1)  # (rows, cols, d), or (b, d)


def test_a_column_has_one_sign_in_each_row_as_in_scipy():
    d, cols = 70, 16
    reference = clarkson_woodruff_transform(np.eye(d), cols, rng=0)
    assert np.all((reference != 0).sum(axis=0) == 1)
    one_row = matrix(sketch.count_sketch(cols), d)[0]
    assert np.all((one_row != 0).sum(axis=0) == 1)
    assert set(np.unique(one_row)) == set(np.unique(reference)) == {-1.0, 0.0, 1.0}

    rows = matrix(sketch.count_sketch(cols, rows=3), d)
    assert np.all((rows != 0).sum(axis=1) == 1)
    np.testing.assert_allclose(np.abs(rows[rows != 0]), 3**-0.5, rtol=1e-6)


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


def test_coordinates_collide_at_one_rate_and_those_of_a_tile_never():
    """Within a tile places depend on each other: h(j) = h(i) + j - i."""
    cols, d = 16, 70
    coordinates = [0, 1, 15, 16, 17, 40, 64, 69]  # the last tile is a part of one
    tiles = [each // cols for each in coordinates]
    op, units = sketch.count_sketch(cols), np.eye(d, dtype=np.float32)[coordinates]

    @quickly
    @jax.vmap
    def places(key):
        rows = jax.vmap(lambda unit: op.apply(key, unit)[0])(units)
        return jnp.abs(rows).argmax(axis=1)

    found = np.asarray(places(jax.random.split(KEY, DRAWS)))
    for column in found.T:
        assert stats.chisquare(np.bincount(column, minlength=cols)).pvalue > 1e-4
    assert stats.chisquare(np.bincount(0 * column, minlength=cols)).pvalue < 1e-12
    doubt = 4 * (1 / cols * (1 - 1 / cols) / DRAWS) ** 0.5
    for i, j in itertools.combinations(range(len(coordinates)), 2):
        hits = found[:, i] == found[:, j]
        if tiles[i] == tiles[j]:
            apart = coordinates[j] - coordinates[i]
            assert np.all((found[:, j] - found[:, i]) % cols == apart % cols)
        else:
            assert hits.mean() == pytest.approx(1 / cols, abs=doubt), (i, j)
