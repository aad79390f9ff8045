"""The theory of the attack: what is printed says nothing, what is near holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import sketch
from fl_sketch.audit import leakage_theory as theory
from fl_sketch.audit.leakage_theory import Singular

PIXELS, WEIGHTS = 8, 60
MATRIX = jax.random.normal(jax.random.key(0), (WEIGHTS, PIXELS)) / WEIGHTS**0.5
KEY = jax.random.key(1)
TRUE = jax.random.uniform(jax.random.key(2), (PIXELS,))


def gradient(z):
    """Of F(w, z) at w = 0, for F with grad_w F = A z + sin(A z) / 10."""
    return MATRIX @ z + 0.1 * jnp.sin(MATRIX @ z)


def views():
    op = sketch.gaussian(40)
    return {
        "plain": gradient,
        "linear": lambda z: MATRIX @ z,
        "sketched": lambda z: op.apply(KEY, gradient(z)),
    }


def descend(view, start, step, count):
    """Returns L before every step."""
    seen = view(TRUE)
    value = lambda z: jnp.sum((view(z) - seen) ** 2)  # noqa: E731

    def one(z, _):
        now, slope = jax.value_and_grad(value)(z)
        return z - step * slope, now

    return np.asarray(jax.lax.scan(one, start, length=count)[1], np.float64)


def constants(view, count):
    """Returns points around the true ones, and sigma and H at these."""
    points = TRUE + 0.1 * jax.random.normal(jax.random.key(4), (count, PIXELS))
    maps = theory.jacobians(view, points)
    return points, theory.singular_values(maps), theory.bend(maps, points)


@pytest.mark.parametrize("name", views())
def test_the_measured_rate_is_at_least_the_promised_one(name):
    view = views()[name]
    start = TRUE + 0.05 * jax.random.normal(jax.random.key(3), (PIXELS,))
    before = float(jnp.sum((view(start) - view(TRUE)) ** 2))
    _, sigma, bend = constants(view, 20)
    rate = theory.near(sigma, bend, start=before)
    assert 0 < rate.gamma < 1 and rate.step > 0
    values = descend(view, start, rate.step, 60)
    falling = values[:-1] > 1e-10  # below is rounding
    assert (values[1:] <= (1 - rate.gamma) * values[:-1])[falling].all()


@pytest.mark.parametrize("name", views())
def test_both_conditions_hold_where_the_constants_were_taken(name):
    view, seen = views()[name], views()[name](TRUE)
    points, sigma, bend = constants(view, 30)

    @jax.jit
    @jax.vmap
    def value_and_slope(z):
        return jax.value_and_grad(lambda z: jnp.sum((view(z) - seen) ** 2))(z)

    values, slopes = map(np.asarray, value_and_slope(points))
    steps = np.diff(points, axis=0)
    apart = np.linalg.norm(steps, axis=1)
    now, slope = values[:-1], slopes[:-1]
    # The bend is an estimate from below: a tenth of room.
    bound = now + (slope * steps).sum(1) + sigma.largest**2 * apart**2
    bound += 1.1 * bend * apart**2 * np.sqrt(now)
    assert (values[1:] <= bound * (1 + 1e-5)).all()
    ratio = (slopes**2).sum(1) / values
    assert (ratio <= 4 * sigma.largest**2 * (1 + 1e-4)).all()
    assert (ratio >= 4 * sigma.smallest**2 * 0.9).all()


def test_a_linear_problem_has_the_rate_of_quadratics():
    sigma = Singular(1.0, 2.0)
    rate = theory.near(sigma, bend=0.0, start=1.0)
    assert rate.a == 0 and rate.b == 4.0 and rate.theta == Singular(2.0, 4.0)
    assert rate.step == 4 / (2 * 4 * 16) and rate.gamma == rate.step * 4 / 2


@pytest.mark.parametrize("spread", [1.0, 1.5, 30.0])
@pytest.mark.parametrize("sketch_spread", [1.0, 4.0])
def test_the_printed_constants_promise_nothing_of_anything(spread, sketch_spread):
    rate = theory.printed(Singular(1.0, spread), Singular(1.0, sketch_spread))
    assert rate.step == rate.gamma == 0.0
    assert rate.a * rate.theta.largest >= rate.theta.smallest**2


def test_singular_values_are_those_of_the_matrices():
    op = sketch.gaussian(5)
    rows = jax.vmap(lambda e: op.apply(KEY, e))(jnp.eye(20)).T
    expected = jnp.linalg.svd(rows, compute_uv=False)
    found = theory.of_sketch(op, KEY, 20)
    np.testing.assert_allclose(found, (expected.min(), expected.max()), rtol=1e-4)
    assert theory.of_sketch(sketch.identity(), KEY, 7) == Singular(1.0, 1.0)
    parts = {"a": jnp.zeros(12), "b": jnp.zeros((2, 4))}
    by_leaves = theory.of_sketch(sketch.leaf_by_leaf(op), KEY, parts)
    alone = [
        theory.of_sketch(op.resize(numbers), jax.random.fold_in(KEY, leaf), length)
        for leaf, (numbers, length) in enumerate([(3, 12), (2, 8)])
    ]
    expected = (min(alone)[0], max(part.largest for part in alone))
    np.testing.assert_allclose(by_leaves, expected, rtol=1e-4)
