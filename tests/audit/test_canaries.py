"""The audit stays below a true claim, and rises above a false one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import channels, engine, local
from fl_sketch.audit import canaries
from fl_sketch.privacy import accounting, bounding, mechanism
from fl_sketch.protocols import Algorithm, Bounded, Channel, Delivery, Memory, Release
from tests.meshes import mesh_of

CLIENTS, D, C, Z, DELTA, TRIALS = 4, 3, 2.0, 1.0, 0.1, 6000
E = jnp.eye(D)[0]
# All push one way but the canary, client 0, and all push as hard as they may.
DATA = 10 * C * E * jnp.array([-1.0, 1.0, 1.0, 1.0])[:, None]


def linear(params, batch):
    return params @ batch


def fetch(data, client, plan, key):
    del plan, key
    return data[client][None]


def guard(noise_multiplier=Z, denominator=CLIENTS):
    return mechanism.central(
        bounding.clip(C), noise_multiplier=noise_multiplier, denominator=denominator
    )


def over_those_who_came():
    """The planted bug: the cohort's size as the denominator."""
    right = guard(denominator=1)

    def bound(*arguments):
        bounded = right.bound(*arguments)
        return Bounded((bounded.summand, jnp.float32(1)), bounded.rejected)

    def release(state, exchange, total, keys):
        total, count = total
        mean = right.release(state, exchange, total, keys).mean
        return Release(mean / jnp.maximum(count, 1), state, {})

    return right._replace(bound=bound, release=release)


def sent_twice():
    def mean(update, memory, keys, link):
        del keys
        return Delivery(link.mean(update) + link.mean(update), update, 0), memory

    return Channel(lambda params: Memory((), ()), mean)


def audited(guard, uplink=None, sampler=None, rounds=1):
    algorithm = Algorithm(
        local.one_gradient(linear), uplink or channels.exact(), optax.sgd(1.0), guard
    )
    absent, present = (
        canaries.scores(
            algorithm,
            fetch,
            jnp.zeros(D),
            DATA,
            sampler or engine.everyone(CLIENTS),
            canary=0,
            present=there,
            direction=E,
            population=CLIENTS,
            rounds=rounds,
            trials=TRIALS,
            key=jax.random.key(5),
            mesh=mesh_of(1, "clients"),
        )
        for there in (False, True)
    )
    assert np.isfinite(absent).all() and np.isfinite(present).all()
    return canaries.lower_bound(absent, present, delta=DELTA)


def claimed(sampling="everyone", **changes):
    plan = accounting.Plan(1, CLIENTS, CLIENTS, sampling)._replace(**changes)
    return accounting.epsilon(plan, Z, delta=DELTA)


def test_a_true_claim_is_not_exceeded_and_nearly_reached():
    found = audited(guard())
    assert 0.7 * claimed() < found < claimed()


def test_half_the_noise_is_exposed():
    assert audited(guard(Z / 2)) > claimed()


def test_the_size_of_the_cohort_as_denominator_is_exposed():
    assert audited(over_those_who_came()) > claimed()


def test_a_forgotten_second_release_is_exposed():
    found = audited(guard(), sent_twice())
    assert claimed() < found < claimed(releases=2)


def test_what_is_claimed_of_poisson_cohorts_is_not_exceeded():
    found = audited(guard(denominator=2), sampler=engine.poisson(CLIENTS, 2), rounds=3)
    assert 0 < found < claimed("poisson", steps=3, sample=2)


@pytest.mark.parametrize("shift", [0.8, 1.0, 2.0])
def test_the_bound_is_below_what_is_known_of_two_gaussians(shift):
    rng = np.random.default_rng(1)
    truth = accounting.epsilon(
        accounting.Plan(1, 1, 1, "everyone"), 1 / shift, delta=DELTA
    )
    bounds = [
        canaries.lower_bound(
            rng.normal(size=3000), shift + rng.normal(size=3000), delta=DELTA
        )
        for _ in range(20)
    ]
    assert max(bounds) < truth
    assert min(bounds) > 0.3 * truth
