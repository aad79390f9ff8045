"""Count sketches and sparse embeddings have the structure of their definitions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.linalg import clarkson_woodruff_transform

from fl_sketch import sketch
from fl_sketch.sketch import buckets
from tests.channels.rounds import quickly
from tests.oracles import count_sketch as oracle

KEY = jax.random.key(3)
DRAWS = 20_000
hashes = pytest.mark.parametrize("hash_name", ["blocked", "independent"])


def matrix(op, d, key=KEY):
    eye = np.eye(d, dtype=np.float32)
    rows = quickly(jax.vmap(op.apply, (None, 0)))(key, eye)
    return np.moveaxis(np.asarray(rows), 0, -1)  # (rows, cols, d), or (b, d)


def places(cols, d, coordinates, hash_name="blocked", make=None):
    """Returns the bucket of each coordinate, of shape (draws, coordinates)."""
    make = make or buckets.BUCKETS[hash_name]
    ways = make(cols)
    tile = ways.tile(d)

    @jax.jit
    @jax.vmap
    def draw(key):
        drawn = ways.draw(key, d, 1, 1)

        def bucket(i):
            first = jnp.minimum(i // tile * tile, d - tile)
            index = first.astype(jnp.uint32) + jnp.arange(tile, dtype=jnp.uint32)
            one = (index == i.astype(jnp.uint32)).astype(jnp.float32)
            table = ways.widen(jnp.zeros(cols))
            table = ways.add(table, drawn, i // tile, 0, index, one)
            return jnp.argmax(ways.fold(table))

        return jax.vmap(bucket)(jnp.asarray(coordinates))

    return np.asarray(draw(jax.random.split(KEY, DRAWS)))


@hashes
def test_a_column_has_one_sign_in_each_row_as_in_scipy(hash_name):
    d, cols = 70, 16
    reference = clarkson_woodruff_transform(np.eye(d), cols, rng=0)
    assert np.all((reference != 0).sum(axis=0) == 1)
    one_row = matrix(sketch.count_sketch(cols, hash=hash_name), d)[0]
    assert np.all((one_row != 0).sum(axis=0) == 1)
    assert set(np.unique(one_row)) == set(np.unique(reference)) == {-1.0, 0.0, 1.0}

    rows = matrix(sketch.count_sketch(cols, rows=3, hash=hash_name), d)
    assert np.all((rows != 0).sum(axis=1) == 1)
    np.testing.assert_allclose(np.abs(rows[rows != 0]), 3**-0.5, rtol=1e-6)


@pytest.mark.parametrize("d", [3, 24, 70])
@pytest.mark.parametrize("kind", ["replacement-free", "blocked"])
def test_an_embedding_has_its_nonzeros_in_every_column(kind, d):
    r = matrix(sketch.sparse_embedding(12, 4, kind=kind), d)
    assert np.all((r != 0).sum(axis=0) == 4)
    np.testing.assert_allclose(np.abs(r[r != 0]), 0.5)
    if kind == "blocked":
        assert np.all((r.reshape(4, 3, d) != 0).sum(axis=1) == 1)


@pytest.mark.parametrize(
    ("hash_name", "rows"),
    [("blocked", 1), ("blocked", 4), ("blocked", 5), ("independent", 3)],
)
def test_apply_and_median_follow_the_definition(hash_name, rows):
    d, cols = 61, 16
    op = sketch.count_sketch(cols, rows=rows, hash=hash_name)
    mean = sketch.count_sketch(cols, rows=rows, hash=hash_name, query="mean")
    r = matrix(op, d) * rows**0.5
    where, signs = np.abs(r).argmax(axis=1), r.sum(axis=1).round()
    x = np.random.default_rng(8).normal(size=d).astype(np.float32)

    @quickly
    def there_and_back(x):
        s = op.apply(KEY, x)
        reads = op.estimate, mean.estimate, op.transpose
        return s, mean.apply(KEY, x), *(read(KEY, s, d) for read in reads)

    s, of_mean, estimate, estimate_of_mean, back = there_and_back(x)
    table = oracle.apply(x, where, signs, cols)
    np.testing.assert_allclose(s * rows**0.5, table, atol=1e-5)
    np.testing.assert_allclose(estimate, oracle.query(table, where, signs), atol=1e-5)
    np.testing.assert_array_equal(of_mean, s)
    np.testing.assert_array_equal(estimate_of_mean, back)


def rate_is(hits, expected):
    standard_error = (expected * (1 - expected) / DRAWS) ** 0.5
    return abs(hits.mean() - expected) <= 4 * standard_error


@hashes
def test_coordinates_collide_at_one_rate_and_those_of_a_tile_never(hash_name):
    cols, d = 16, 70
    tiles = [0, 0, 0, 1, 1, 2, 4, 4]  # the last tile is a part of one
    found = places(cols, d, [0, 1, 15, 16, 17, 40, 64, 69], hash_name)
    for (i, one), (j, other) in itertools.combinations(enumerate(tiles), 2):
        hits = found[:, i] == found[:, j]
        within = hash_name == "blocked" and one == other
        assert not hits.any() if within else rate_is(hits, 1 / cols), (i, j)


def worst_uniformity(found, cols):
    counts = [np.bincount(column, minlength=cols) for column in found.T]
    return min(stats.chisquare(count).pvalue for count in counts)


def test_buckets_are_uniform_and_a_zero_hash_would_not_be():
    cols, d, coordinates = 16, 70, [0, 5, 16, 63, 64, 69]
    for hash_name in buckets.BUCKETS:
        assert worst_uniformity(places(cols, d, coordinates, hash_name), cols) > 1e-4

    def zero_hash(cols):
        ways = buckets.blocked(cols)
        return ways._replace(draw=lambda *a: jnp.zeros_like(ways.draw(*a)))

    zero = places(cols, d, coordinates, make=zero_hash)
    assert worst_uniformity(zero, cols) < 1e-12
