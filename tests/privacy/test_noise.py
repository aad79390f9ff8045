"""Mechanisms draw the noise that the accountant knows, and as much as is left."""

import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.core.keys import round_keys
from fl_sketch.privacy import gaussian, mechanism
from tests.privacy.test_mechanism import (
    CLIENTS,
    GAUSSIAN,
    GUARDS,
    C,
    Z,
    fits,
    measured_noise,
)
from tests.simulation import KEY


def test_adaptive_noise_is_what_the_count_leaves_of_it():
    count_noise = 0.4  # most of what z = 0.7 allows
    guard = mechanism.adaptive(
        C, noise_multiplier=Z, denominator=CLIENTS, count_noise=count_noise
    )
    noise = measured_noise(guard, 10_000, (jnp.zeros(4), jnp.zeros(())))
    left = (Z**-2 - (2 * count_noise) ** -2) ** -0.5
    assert left > 2 * Z and fits(noise, left * C)


@pytest.mark.parametrize("guard", ["central", "distributed"])
def test_noise_has_the_tail_that_the_accountant_knows(guard, monkeypatch):
    """That of `gaussian.noise`, and not of jax.random.normal, which ends too soon."""
    zeros, keys = jnp.zeros(4), round_keys(KEY, 0, 0)
    monkeypatch.setattr(
        gaussian, "noise", lambda key, like, scale: jnp.full(like.shape, 11.0 * scale)
    )
    if guard == "central":
        noise, scale = CLIENTS * GAUSSIAN.release((), 0, zeros, keys).mean, Z * C
    else:
        noise = GUARDS[guard].encode((), 0, zeros, keys).summand[0]
        scale = Z * C / 5**0.5
    np.testing.assert_allclose(noise, 11 * scale, rtol=0.01)
