"""Heavy coordinates and the norm, from a multi-row sketch alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import sketch
from tests.channels.rounds import quickly
from tests.oracles import count_sketch as oracle

KEYS = jax.random.split(jax.random.key(0), 100)


def power_law(d, seed):
    draw = np.random.default_rng(seed)
    magnitudes = draw.permutation(np.arange(1, d + 1, dtype=np.float32) ** -1)
    return magnitudes * draw.choice(np.array([-1, 1], np.float32), d)


def heavy(op, d, m, **options):
    """Returns (key, x) -> (estimates, the norm squared, heavy coordinates)."""

    @quickly
    def found(key, x):
        s = op.apply(key, x)
        chosen = sketch.heavy_coordinates(op, key, s, d, m, **options)
        return op.estimate(key, s, d), sketch.squared_norm(s), chosen

    return lambda key, x: jax.tree.map(np.asarray, found(key, x))


def test_heavy_coordinates_of_a_power_law_are_found_and_its_norm():
    d, m, op = 5000, 10, sketch.count_sketch(cols=300, rows=7)
    choose = heavy(op, d, m)
    for seed, key in enumerate(KEYS[:20]):
        x = power_law(d, seed)
        _, norm, chosen = choose(key, x)
        # x_(1)^2 .. x_(2)^2 are above |x|^2 / 10: they must be there.
        assert np.isin(np.argsort(-np.abs(x))[:2], chosen).all()
        assert np.unique(chosen).size == m
        assert abs(norm / (x @ x) - 1) <= 0.5


def test_the_heavy_set_is_the_one_of_the_definition_then_others():
    d, m = 400, 12
    op = sketch.count_sketch(cols=60, rows=5)
    estimates, norm, chosen = heavy(op, d, m)(jax.random.key(5), power_law(d, 5))
    expected, chosen = oracle.heavy(estimates, float(norm), m), chosen.tolist()
    assert 0 < len(expected) < m
    assert set(chosen[: len(expected)]) == expected
    assert chosen[: len(expected)] == sorted(expected, key=lambda i: -abs(estimates[i]))


def test_too_many_heavy_ones_are_cut_to_the_largest():
    # Two buckets for 40 coordinates: half of all estimates are the larger bucket.
    d, m, op = 40, 5, sketch.count_sketch(cols=2)
    estimates, norm, chosen = heavy(op, d, m)(jax.random.key(2), power_law(d, 2))
    estimates = np.abs(estimates)
    assert np.sum(estimates**2 >= float(norm) / m) > m
    np.testing.assert_allclose(estimates[chosen], estimates.max())
    assert np.unique(chosen).size == m


def test_fillers_are_uniform():
    d, m = 20, 5
    op = sketch.count_sketch(cols=100, rows=3)
    spike = (np.arange(d) == 7).astype(np.float32)

    @quickly
    @jax.vmap
    def draw(key):
        return sketch.heavy_coordinates(op, key, op.apply(key, spike), d, m)

    chosen = np.asarray(draw(jax.random.split(KEYS[0], 2000)))
    counts = np.bincount(chosen.ravel(), minlength=d)
    assert counts[7] == 2000
    others = np.delete(counts, 7)
    expected = 2000 * (m - 1) / (d - 1)
    assert np.all(np.abs(others - expected) < 5 * expected**0.5)


def test_filled_from_the_top_they_are_those_of_the_largest_estimates():
    d, m, op = 500, 20, sketch.count_sketch(cols=60, rows=5)
    from_top, at_random = heavy(op, d, m, fill="top"), heavy(op, d, m)
    x = np.random.default_rng(3).normal(size=d).astype(np.float32)
    shared = []
    for key in KEYS[:5]:
        estimates, _, found = from_top(key, x)
        largest = np.argsort(-np.abs(estimates))[:m]
        np.testing.assert_array_equal(np.sort(found), np.sort(largest))
        shared.append(np.isin(at_random(key, x)[2], largest).mean())
    # Of a dense vector few coordinates are heavy; as printed, most are random.
    assert np.mean(shared) < 0.7


@pytest.mark.parametrize("fill", ["random", "top"])
def test_a_zero_vector_and_a_nan_are_rounds_like_any_other(fill):
    d, m, op = 30, 4, sketch.count_sketch(cols=20, rows=3)
    choose = functools.partial(heavy(op, d, m, fill=fill), KEYS[1])
    zero = choose(jnp.zeros(d))[2]
    assert np.unique(zero).size == m and zero.max() > m
    assert np.isnan(choose(jnp.ones(d).at[3].set(jnp.nan))[1])
