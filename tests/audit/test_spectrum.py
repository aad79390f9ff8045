"""Lanczos sees what a dense eigendecomposition sees, on every kind of model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import optimize

from fl_sketch import models
from fl_sketch.audit import spectrum
from tests.meshes import mesh_of

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
BATCHES, BATCH = 3, 8


def task(name, shape, classes=4, tokens=0, **options):
    """Returns (loss of a batch, params off their start, batches)."""
    loss = models.classification(models.build(name, classes, **options))
    lead = (BATCHES, BATCH)
    if tokens:
        inputs = jax.random.randint(KEY, (*lead, *shape), 0, tokens)
    else:
        inputs = jax.random.normal(KEY, (*lead, *shape))
    targets = jax.random.randint(jax.random.key(1), lead, 0, classes)
    params = loss.init(KEY, inputs[0])
    noise = jax.random.key(2)
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * jax.random.normal(noise, leaf.shape), params
    )
    return (lambda p, batch: loss.value(p, *batch)), params, (inputs, targets)


def dense(loss, params, batches):
    """Returns the Hessian, a column for each unit vector, and its decomposition."""
    vector, unravel = ravel_pytree(params)

    def whole(x):
        batch = [jax.tree.map(lambda b, i=i: b[i], batches) for i in range(BATCHES)]
        return sum(loss(unravel(x), b) for b in batch) / BATCHES

    hessian = jax.jit(jax.jacrev(jax.grad(whole)))(vector)
    return np.linalg.eigh(np.asarray(hessian, np.float64))


def test_a_small_net_is_seen_as_densely():
    """To 1e-4: the ends of the spectrum, and what each probe sees of the rest."""
    loss, params, batches = task("mlp", (6, 6, 1), hidden=(30,))
    values, vectors = dense(loss, params, batches)
    assert values.size == 1234
    find = jax.jit(functools.partial(spectrum.of_loss, loss, probes=4, steps=100))
    found = find(params, batches, KEY)
    top = values[-1]
    seen, weights = spectrum.rule(found)
    np.testing.assert_allclose(seen.max(axis=1), top, rtol=1e-4)
    np.testing.assert_allclose(seen.min(axis=1), values[0], atol=1e-4 * top)
    # The three largest, and the quadrature of functions, probe by probe.
    np.testing.assert_allclose(
        seen[:, -3:], np.tile(values[-3:], (4, 1)), atol=1e-4 * top
    )
    keys = jax.random.split(KEY, 4)
    probes = [np.asarray(jax.random.rademacher(k, (1234,), float)) for k in keys]
    exact = np.stack([(vectors.T @ probe) ** 2 / 1234 for probe in probes])
    for function in (np.abs, np.square, lambda x: np.exp(-((x / top) ** 2))):
        ours = (weights * function(seen)).sum(axis=1)
        scale = np.abs(function(values)).max()
        np.testing.assert_allclose(ours, exact @ function(values), atol=1e-4 * scale)
    for steps in (10, 30, 100):
        cut = found._replace(tridiagonal=found.tridiagonal[:, :steps, :steps])
        least, most = spectrum.bounds(cut)
        true = 1234 * (exact @ np.abs(values)).mean() / top
        assert least - 1e-3 < true < most + 1e-3, (steps, least, true, most)
    assert spectrum.spread(found) < 0.05
    dimension = np.abs(values).sum() / np.abs(values).max()
    assert spectrum.intrinsic_dimensions(found).mean() == pytest.approx(dimension, 0.1)
    near = np.mean(np.abs(values) < 0.01 * np.abs(values).max())
    assert spectrum.share_near_zero(found) == pytest.approx(near, abs=0.03)
    at = np.linspace(-1.5 * top, 1.5 * top, 2001)
    total = spectrum.density(found, at, width=top / 100).sum() * (at[1] - at[0])
    assert total == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("seed", range(2))
def test_bounds_are_those_of_a_linear_program(seed):
    """Over all weights of a grid of places that have what four steps know of them.

    The first seven moments, in Chebyshev's polynomials; more are beyond what a program
    in float64 can tell apart.
    """
    random = np.random.default_rng(seed)
    line = np.linspace(-8, 8, 8001)  # an extreme may have a place far out
    bulk = random.choice(line[3750:4251], 60)
    values = np.concatenate([bulk, [-1, 0.4, 1]])
    probe = random.choice([-1.0, 1.0], len(values))
    basis = [probe / np.linalg.norm(probe)]
    for _ in range(4):
        product = values * basis[-1]
        product -= np.array(basis).T @ (np.array(basis) @ product)
        basis.append(product / np.linalg.norm(product))
    tall = np.array(basis[:4])
    seen = spectrum.Spectrum((tall * values @ tall.T)[None], len(values))
    moments = np.polynomial.chebyshev.chebvander
    known, every = moments(values / 8, 6).mean(axis=0), moments(line / 8, 6).T
    top = spectrum.largest(seen)
    programs = [
        optimize.linprog(sign * np.abs(line), A_eq=every, b_eq=known).fun * sign
        for sign in (1, -1)
    ]
    expected = len(values) * np.array(programs) / top
    np.testing.assert_allclose(spectrum.bounds(seen), expected, rtol=0.01)
    assert expected[1] > 1.1 * expected[0]


def test_devices_share_the_probes_out():
    """Three on two devices, each as it would be alone."""
    loss, *arrays = task("logistic", (4, 4, 1))
    arrays = jax.device_get(arrays)  # jax's caches can give them another test's mesh

    def find(mesh):
        found = functools.partial(spectrum.of_loss, loss, probes=3, steps=10, mesh=mesh)
        return jax.jit(found)(*arrays, jax.random.key(0)).tridiagonal

    alone, shared = find(None), find(mesh_of(2, "clients"))
    assert shared.shape == (3, 10, 10)
    np.testing.assert_allclose(alone, shared, rtol=1e-3, atol=1e-5)


def test_a_hessian_of_rank_one_does_not_break_lanczos():
    def loss(params, batch):
        return (params @ batch) ** 2 / 2

    found = spectrum.of_loss(
        loss, jnp.zeros(20), jnp.ones((1, 20)), KEY, probes=2, steps=8
    )
    assert np.isfinite(found.tridiagonal).all()
    exact = spectrum.intrinsic_dimensions(found).mean()  # since all was seen
    assert spectrum.bounds(found) == pytest.approx((exact, exact))
    assert spectrum.largest(found) == pytest.approx(20, rel=1e-4)
