"""Mechanisms that tests share, and whether numbers are the noise of one."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from fl_sketch.core import trees
from fl_sketch.core.keys import round_keys
from fl_sketch.privacy import clipping, mechanism
from tests.simulation import KEY, compiled

CLIENTS, Z, C = 6, 0.7, 0.5
GAUSSIAN = mechanism.central(clipping.clip(C), noise_multiplier=Z, denominator=CLIENTS)
GUARDS = {
    "central": GAUSSIAN,
    "shares": mechanism.integers(
        clipping.normalise(C),
        noise_multiplier=Z,
        denominator=CLIENTS,
        bits=20,
        smallest=5,
    ),
    "adaptive": mechanism.adaptive(
        1.0, noise_multiplier=Z, denominator=CLIENTS, count_noise=2.0
    ),
}


def measured_noise(guard, draws, like):
    """Returns what an empty cohort releases, times r: noise, [draws, numbers]."""
    zeros = jax.tree.map(jnp.zeros_like, like)

    def one(number):
        keys = round_keys(KEY, number, 0)
        return trees.ravel(guard.release(guard.init(), 0, zeros, keys).mean)

    return CLIENTS * np.asarray(compiled(jax.vmap(one))(np.arange(draws)))


def fits(noise, scale):
    """Returns whether 10,000 draws have this standard deviation within 1% and shape.

    They lie on a grid; spread over its cells they are normal, if they ever were.
    """
    noise = np.asarray(noise).ravel()
    cell = 2.0 ** np.floor(np.log2(scale)) / 16
    spread = noise + np.random.default_rng(0).uniform(-cell / 2, cell / 2, noise.size)
    same_scale = abs(float(np.std(noise)) / scale - 1) < 0.01
    normal = stats.kstest(spread / scale, "norm").pvalue > 1e-3
    return same_scale and normal
