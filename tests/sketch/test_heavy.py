"""Heavy coordinates and the norm, from a multi-row sketch alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import sketch
from tests.oracles import count_sketch as oracle

KEYS = jax.random.split(jax.random.key(0), 100)


def power_law(d, key):
    magnitudes = jnp.arange(1, d + 1, dtype=jnp.float32) ** -1.0
    return jax.random.permutation(key, magnitudes) * jax.random.rademacher(key, (d,))


def test_heavy_coordinates_of_a_power_law_are_found():
    d, m, op = 5000, 10, sketch.count_sketch(cols=300, rows=7)
    found = []
    for key in KEYS[:20]:
        x = power_law(d, key)
        chosen = sketch.heavy_coordinates(op, key, op.apply(key, x), d, m)
        # x_(1)^2 .. x_(2)^2 are above |x|^2 / 10: they must be there.
        largest = np.argsort(-np.abs(x))[:2]
        found.append(np.isin(largest, chosen).all())
        assert np.unique(chosen).size == m
    assert np.mean(found) == 1.0


def test_norm_is_within_half_in_99_of_100_draws():
    op = sketch.count_sketch(cols=100, rows=5)
    x = power_law(3000, jax.random.key(1))
    estimates = [float(sketch.squared_norm(op.apply(key, x))) for key in KEYS]
    ratios = np.array(estimates) / float(x @ x)
    assert np.mean(np.abs(ratios - 1) <= 0.5) >= 0.99


def test_the_heavy_set_is_the_one_of_the_definition_then_others():
    d, m, key = 400, 12, jax.random.key(5)
    op = sketch.count_sketch(cols=60, rows=5)
    s = op.apply(key, power_law(d, key))
    estimates = np.asarray(op.estimate(key, s, d))
    heavy = oracle.heavy(estimates, float(sketch.squared_norm(s)), m)
    assert 0 < len(heavy) < m
    chosen = np.asarray(sketch.heavy_coordinates(op, key, s, d, m)).tolist()
    assert set(chosen[: len(heavy)]) == heavy
    assert chosen[: len(heavy)] == sorted(heavy, key=lambda i: -abs(estimates[i]))


def test_too_many_heavy_ones_are_cut_to_the_largest():
    # Two buckets for 40 coordinates: half of all estimates are the larger bucket.
    d, m, key = 40, 5, jax.random.key(2)
    op = sketch.count_sketch(cols=2)
    s = op.apply(key, power_law(d, key))
    estimates = np.abs(op.estimate(key, s, d))
    assert np.sum(estimates**2 >= float(sketch.squared_norm(s)) / m) > m
    chosen = sketch.heavy_coordinates(op, key, s, d, m)
    np.testing.assert_allclose(estimates[chosen], estimates.max())
    assert np.unique(chosen).size == m


def test_fillers_are_uniform():
    d, m = 20, 5
    op = sketch.count_sketch(cols=100, rows=3)
    draw = jax.jit(
        lambda key: sketch.heavy_coordinates(
            op, key, op.apply(key, jnp.zeros(d).at[7].set(1.0)), d, m
        )
    )
    counts = np.bincount(
        np.concatenate([draw(key) for key in jax.random.split(KEYS[0], 2000)]),
        minlength=d,
    )
    assert counts[7] == 2000
    others = np.delete(counts, 7)
    expected = 2000 * (m - 1) / (d - 1)
    assert np.all(np.abs(others - expected) < 5 * expected**0.5)


def test_a_zero_vector_and_a_nan_are_rounds_like_any_other():
    d, m, key = 30, 4, jax.random.key(1)
    op = sketch.count_sketch(cols=20, rows=3)
    zero = sketch.heavy_coordinates(op, key, op.zeros(), d, m)
    assert np.unique(zero).size == m
    x = jnp.ones(d).at[3].set(jnp.nan)
    assert jnp.isnan(sketch.squared_norm(op.apply(key, x)))


@pytest.mark.parametrize("m", [0, 31, 1.5])
def test_bad_counts_are_refused(m):
    op = sketch.count_sketch(cols=20, rows=3)
    with pytest.raises((ValueError, TypeError), match=f"got m={m}"):
        sketch.heavy_coordinates(op, jax.random.key(0), op.zeros(), 30, m)
    with pytest.raises(ValueError, match=r"shape \(rows, cols\)"):
        sketch.squared_norm(jnp.zeros(20))
