"""Clipping where the noise of gradients has heavy tails."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.experiments import heavy_tails


def test_noise_is_students_t():
    task = heavy_tails.scene(d=8, tail=5.0, rounds=1)._replace(steps=20000)
    noise = np.asarray(task.batch(0, jax.random.key(0)))
    assert noise.shape == (20000, 8)
    # The variance of Student's t is tail / (tail - 2), and a median of |t| is 0.7267.
    assert abs(noise.var() - 5 / 3) < 0.1
    assert abs(np.median(np.abs(noise)) - 0.7267) < 0.01
    lengths = np.square(noise).sum(1)  # the numbers of a step have one length
    assert np.corrcoef(np.square(noise[:, 0]), lengths - noise[:, 0] ** 2)[0, 1] > 0.2


def test_the_gradient_is_that_of_the_quadratic_and_the_noise():
    task = heavy_tails.scene(d=3, tail=2.0, rounds=1)
    x, noise = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, 0.0, -1.0])
    expected = task.curvature * x + noise
    np.testing.assert_allclose(jax.grad(task.loss)(x, noise), expected, rtol=1e-6)


def test_runs_that_diverge_are_no_small_quantile():
    found = np.array([[1.0, np.inf, np.inf], [1.0, 2.0, 3.0]])
    assert heavy_tails.quantile(found).tolist() == [np.inf, 3.0]


@pytest.mark.slow
def test_plain_steps_need_clipping_without_variance():
    task = heavy_tails.scene(d=20, tail=1.2, rounds=60)
    rows = list(heavy_tails.measure(task, numbers=10, runs=16))
    high = {(row.server, row.numbers, row.clipped): row.high for row in rows}
    assert len(high) == len(rows) == 8
    for numbers in (20, 10):
        assert high["sgd", numbers, "yes"] < high["sgd", numbers, "no"] / 1.5
    for row in rows:
        assert (row.threshold > 0) == (row.clipped == "yes")
        assert row.median <= row.high < np.inf


def test_a_tail_is_in_range():
    with pytest.raises(ValueError, match="tail"):
        heavy_tails.scene(d=3, tail=0.0, rounds=1)
