"""The paths of Das et al.'s quadratics, against plain descent."""

import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.experiments import quadratics

SETTINGS = quadratics.Settings(
    thresholds=(1e6,), rates=(0.05,), seeds=(0, 1), rounds=3, steps=2, clients=4, d=6,
    rank=3,
)  # fmt: skip


def test_without_noise_and_clipping_a_path_is_that_of_full_gradient_steps():
    walked = quadratics.paths(SETTINGS, 0.0)
    (row, _) = quadratics.rows(SETTINGS, walked)
    path = walked["clip", "w* + z", 1e6, 0.05]
    ends = []
    for seed, excess, models in zip(
        SETTINGS.seeds, path.excess, path.models, strict=True
    ):
        task = quadratics.problem(SETTINGS, seed)
        roots, optima = np.asarray(task.roots), np.asarray(task.optima)
        hessians = np.einsum("cdr,cer->cde", roots, roots)
        slopes = np.einsum("cde,ce->cd", hessians, np.asarray(task.optimum) - optima)
        np.testing.assert_allclose(slopes.mean(0), 0, atol=1e-5)
        w = np.asarray(task.optimum + task.offset)
        for k in range(4):
            np.testing.assert_allclose(models[k], w - task.optimum, atol=1e-5)
            best, loss = task.mean_loss(task.optimum), task.mean_loss(jnp.asarray(w))
            assert excess[k] == pytest.approx(float(loss - best), rel=1e-3)
            local = np.tile(w, (4, 1))
            for _ in range(SETTINGS.steps):
                local -= 0.05 * np.einsum("cde,ce->cd", hessians, local - optima)
            w = local.mean(0)
        ends.append(excess[-1])
    assert row["clip_excess"] == pytest.approx(np.mean(ends))
    assert row["ratio"] == row["normalise_excess"] / row["clip_excess"]
    near = walked["clip", "w* + z/5", 1e6, 0.05].models[:, 0]
    np.testing.assert_allclose(5 * near, path.models[:, 0], atol=1e-5)
