"""Toy problems have the constants that they promise, and runs are those of a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import theorems, toy
from fl_sketch import algorithms


@pytest.mark.parametrize("apart", [0.0, 0.5])
def test_the_constants_of_quadratics(apart):
    task = toy.quadratics(d=24, clients=3, condition=5.0, seed=1, apart=apart)
    known, matrices = task.known, np.asarray(task.matrices)
    for matrix in matrices:
        values = np.linalg.eigvalsh(matrix)
        np.testing.assert_allclose(values[[0, -1]], [known["mu"], known["L"]], 1e-4)
    off = np.asarray(task.optimum - task.optima)
    gradients = np.einsum("cij,cj->ci", matrices, off)
    np.testing.assert_allclose(gradients.mean(0), 0, atol=1e-6)
    sigma2 = (gradients**2).sum(1).mean()
    assert known["sigma2"] == pytest.approx(sigma2, rel=1e-4, abs=1e-10)
    optimum = np.asarray(task.optimum, np.float64)
    assert known["r2"] == pytest.approx(optimum @ optimum)
    f0 = optimum @ matrices.mean(0) @ optimum / 2
    assert known["f0"] == pytest.approx(f0, rel=1e-5)


def test_the_constants_of_wells():
    task = toy.wells(d=5, clients=3, decay=1.0, seed=0)
    known = task.known
    assert known["I"] == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)
    x = np.linspace(-4, 4, 2001)[:, None] * np.ones(5)
    slopes = task.curvatures * x / (1 + x**2)
    bends = task.curvatures * (1 - x**2) / (1 + x**2) ** 2
    assert np.linalg.norm(slopes, axis=1).max() == pytest.approx(known["G"])
    assert bends.max() == known["L"] and bends.min() > -known["L"] / 8 - 1e-6
    slope, at = jax.jit(jax.grad(task.mean_loss)), task.optima.mean(0)
    for _ in range(500):
        at = at - slope(at)
    gap = float(task.mean_loss(jnp.zeros(5)) - task.mean_loss(at))
    assert gap < known["f0"] * (1 + 1e-6) and known["f0"] < gap * (1 + 1e-4)


def test_trajectories_and_local_steps_are_those_of_a_plain_loop():
    task = toy.quadratics(d=6, clients=3, condition=4.0, seed=0, apart=1.0)

    def make(rate):
        return algorithms.fedavg(task.loss, client_rate=rate, server_rate=1.0)

    places = toy.trajectories(make, task, np.full(5, 0.2), [0], steps=3)
    w = np.zeros(6)
    for place in places[0]:
        np.testing.assert_allclose(place, w, atol=1e-5)
        local = [[w] for _ in range(3)]
        for client, path in enumerate(local):
            q, o = np.asarray(task.matrices[client]), np.asarray(task.optima[client])
            for _ in range(3):
                path.append(path[-1] - 0.2 * q @ (path[-1] - o))
        steps = theorems.local_steps(task, jnp.asarray(place), 0.2, 3)
        np.testing.assert_allclose(steps, local, atol=1e-5)
        w = np.mean([path[-1] for path in local], axis=0)
