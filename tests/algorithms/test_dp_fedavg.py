"""DP-FedAvg and DP-NormFedAvg follow the paper's lines."""

import functools

import jax
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, engine
from fl_sketch.core.keys import Purpose, for_purpose, round_keys
from fl_sketch.privacy import gaussian
from fl_sketch.theory import das as theory
from tests.oracles import das
from tests.quadratics import PARAMS, STEPS, flat, loss, optima
from tests.quick import some_fast
from tests.simulation import simulate

KEY, CLIENTS, ROUNDS = jax.random.key(3), 12, 8
OPTIONS = {"client_rate": 0.05, "decay": 0.9, "threshold": 2.0, "cohort": 6}
MAKE = {"clip": algorithms.dp_fedavg, "normalise": algorithms.dp_normfedavg}


run = functools.partial(simulate, rounds=ROUNDS, clients=CLIENTS, key=KEY)


@pytest.mark.slow
@pytest.mark.parametrize("bound", some_fast(MAKE, ["clip"]))
def test_a_run_is_the_papers_loop(bound):
    algorithm = MAKE[bound](
        loss, noise_multiplier=0.5, server=optax.sgd(1.5, momentum=0.8), **OPTIONS
    )
    sampler = engine.poisson(CLIENTS, 6)
    state, _ = run(algorithm, sampler=sampler)

    def drawn(number):
        cohort = sampler(for_purpose(KEY, number, Purpose.COHORT))
        return np.asarray(cohort.ids)[np.asarray(cohort.weights) > 0]

    def noise(number):  # of standard deviation z C = 1, by the key of exchange 0
        key = jax.random.fold_in(round_keys(KEY, number, 0).server, Purpose.NOISE)
        return np.asarray(flat(gaussian.noise(jax.random.fold_in(key, 0), PARAMS, 1.0)))

    expected = das.run(
        np.asarray(optima(CLIENTS), np.float64),
        [drawn(k) for k in range(ROUNDS)],
        [noise(k) for k in range(ROUNDS)],
        grid=1 / 16, bound=bound, rate=0.05, decay=0.9, steps=STEPS, limit=2.0,
        momentum=0.8, gamma=1.5,
    )  # fmt: skip
    np.testing.assert_allclose(flat(state.server.params), expected[-1], atol=1e-4)


def test_without_a_bound_that_binds_it_is_fedavg():
    options = OPTIONS | {"threshold": 1e6, "cohort": CLIENTS, "decay": 1.0}
    private = algorithms.dp_fedavg(loss, noise_multiplier=0.0, **options)
    plain = algorithms.fedavg(loss, client_rate=0.05)
    one, other = (flat(run(a)[0].server.params) for a in (private, plain))
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_the_papers_formula_for_its_noise():
    # sigma^2 = q K C^2 log(1/delta) / (n epsilon)^2 on the mean; z = r sigma / C.
    sigma = (500 * np.log(1e6)) ** 0.5 * 3.0 / (100 * 5.0)
    promise = {"epsilon": 5.0, "delta": 1e-6}
    z = theory.noise_multiplier(rounds=500, n=100, r=20, **promise)
    assert z == pytest.approx(20 * sigma / 3.0)
