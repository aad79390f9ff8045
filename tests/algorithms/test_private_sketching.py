"""Private iterative sketching: its rounds; its steps are in tests/privacy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import algorithms, engine, sketch
from tests.channels.rounds import quickly
from tests.meshes import mesh_of
from tests.privacy.test_local_noise import PARAMS, batches, loss


def test_rounds_run_and_do_not_depend_on_the_devices():
    algorithm = algorithms.private_sketching(
        loss,
        sketch=sketch.gaussian(4),
        client_rate=0.1,
        threshold=1.0,
        noise_multiplier=0.1,
        server_rate=0.5,
    )
    data = np.stack([batches(seed) for seed in range(6)])

    def simulate(devices, chunk):
        one_round = engine.make_round(
            algorithm,
            lambda data, client, plan, key: data[client],
            mesh_of(devices, "clients"),
            chunk=chunk,
        )
        everyone = engine.everyone(6)
        run = functools.partial(engine.run_rounds, one_round, everyone, most=3)
        state = engine.initial_state(algorithm, PARAMS, 6)
        return quickly(run)(state, jax.random.key(0), data, 3)[0].server.params

    one = simulate(1, 1)
    assert jnp.isfinite(one).all() and jnp.abs(one).max() > 0
    np.testing.assert_allclose(one, simulate(2, 3), rtol=1e-4, atol=1e-5)
