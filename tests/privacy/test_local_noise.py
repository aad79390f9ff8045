"""Noise at every local step: a clip for every example, and keys of their own."""

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core.keys import Purpose, apart, round_keys
from fl_sketch.core.protocols import Server
from fl_sketch.privacy import local_noise
from tests.channels.rounds import quickly

D, BATCH, STEPS = 5, 4, 3
PARAMS = jnp.zeros(D)


def loss(params, batch):
    return jnp.mean(jnp.sum((params - batch) ** 2, axis=1)) / 2


def batches(seed=0):
    normal = np.random.default_rng(seed).normal(size=(STEPS, BATCH, D))
    return (3 * normal).astype(np.float32)


def run(local, data, key=0):
    @quickly
    def work(key, data):
        server = Server(PARAMS, (), (), jnp.int32(0))
        return local.run(server, (), data, round_keys(key, 0, 0))

    return work(jax.random.key(key), data)


def test_without_noise_it_is_sgd_on_clipped_examples():
    local = local_noise.noisy_steps(loss, rate=0.1, clip=2.0, noise_multiplier=0.0)
    x = np.zeros(D)
    for batch in np.asarray(batches(), np.float64):
        gradients = [x - example for example in batch]
        gradients = [g * min(1, 2.0 / np.linalg.norm(g)) for g in gradients]
        x = x - 0.1 * np.mean(gradients, axis=0)
    np.testing.assert_allclose(run(local, batches()).update, -x, rtol=1e-5)


def test_every_example_of_every_step_has_a_key_of_its_own():
    """By a loss that is a number of its key, times the first parameter."""

    def by_lot(params, batch, key):
        return params[0] * jax.random.normal(key) + 0 * jnp.sum(params - batch)

    local = local_noise.noisy_steps(by_lot, rate=1.0, clip=100.0, noise_multiplier=0.0)
    root = apart(round_keys(jax.random.key(0), 0, 0).own, Purpose.LOSS)
    draws = [float(jax.random.normal(jax.random.fold_in(root, n))) for n in range(12)]
    assert len({*draws}) == len(draws) == STEPS * BATCH
    for steps in (1, STEPS):
        update = run(local, batches()[:steps]).update
        expected = sum(draws[: steps * BATCH]) / BATCH
        np.testing.assert_allclose(update[0], expected, rtol=1e-5)


def test_the_noise_on_a_step_is_z_clip_over_the_batch():
    z, clip, rate = 1.5, 2.0, 0.1
    local = local_noise.noisy_steps(loss, rate=rate, clip=clip, noise_multiplier=z)
    # Every gradient is clipped to nothing but its direction, and these cancel.
    data = jnp.stack([1e3 * jnp.eye(D)[0], -1e3 * jnp.eye(D)[0]])[None]

    def one(key):
        server = Server(PARAMS, (), (), jnp.int32(0))
        return local.run(server, (), data, round_keys(key, 0, 0)).update

    keys = jax.random.split(jax.random.key(1), 10_000)
    noise = quickly(lambda keys: jax.lax.map(one, keys))(keys) / rate
    assert abs(float(jnp.std(noise)) / (z * clip / 2) - 1) < 0.01


def test_steps_have_noise_of_their_own():
    local = local_noise.noisy_steps(loss, rate=1.0, clip=1e-6, noise_multiplier=1e6)
    one = run(local, batches()[:1]).update
    two = run(local, batches()[:2]).update
    assert abs(np.corrcoef(one, two - one)[0, 1]) < 0.999
