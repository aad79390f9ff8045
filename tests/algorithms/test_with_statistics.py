"""Models with statistics of batches: trained, averaged, priced, or refused.

The model is that of `tests.quadratics` with a running mean of what its batches are: by
the s-th step of a client it has moved by 1 - 2^-s towards the client's optimum.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, engine
from fl_sketch.core.trees import Stateful
from fl_sketch.engine import costs
from fl_sketch.run import prepare
from tests import quadratics
from tests.models import own
from tests.quadratics import COUNT, PARAMS, RATE, STEPS, D, optima
from tests.quick import some_fast
from tests.run.configs import config_with
from tests.simulation import cohort_of, simulate, with_cohort

CLIENTS, KEPT = 6, 5
MODEL = Stateful(PARAMS, {"mean": jnp.full(KEPT, 2.0)})
TOP = quadratics.TOP


def loss(model, optimum):
    params, state = model
    moved = jax.tree.map(lambda s: s + (optimum[:KEPT] - s) / 2, state)
    return quadratics.loss(params, optimum), moved


def make(loss):
    """Returns algorithms of every kind of local work, channel and downlink."""
    rates = {"client_rate": RATE, "server_rate": 0.3}
    return {
        "safl": algorithms.safl(
            loss, sketch=COUNT, client_rate=RATE, server=optax.adam(0.1)
        ),
        "scaffold": algorithms.scaffold(loss, steps=STEPS, **rates),
        "ef21": algorithms.ef21(loss, compressor=TOP, server=optax.sgd(0.1)),
        "cd_adam": algorithms.cd_adam(loss, compressor=TOP, server_rate=0.1),
        "fedsketchgate": algorithms.fedsketchgate(
            loss, sketch=COUNT, gain=1.0, **rates
        ),
    }


PLAIN = make(quadratics.loss)
WITH = {
    name: algorithms.with_statistics(algorithm, MODEL)
    for name, algorithm in make(loss).items()
}


def start(algorithm):
    return engine.initial_state(algorithm, MODEL, CLIENTS)


def after_a_round(points, steps):
    """Returns the mean of what clients have after these steps, each by itself."""
    targets = np.asarray(points)[:, :KEPT]
    return np.mean(targets + (2.0 - targets) * 0.5**steps, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", some_fast(WITH, ["safl", "cd_adam"]))
def test_parameters_go_the_algorithms_way_and_statistics_as_in_fedavg(name):
    ours, _ = simulate(WITH[name], rounds=1, start=start(WITH[name]))
    plain, _ = simulate(PLAIN[name], rounds=1)
    params, state = ours.server.params
    chex.assert_trees_all_close(params, plain.server.params, rtol=1e-5, atol=1e-6)
    steps = 1 if name in ("ef21", "cd_adam") else STEPS
    expected = after_a_round(optima(CLIENTS), steps)
    np.testing.assert_allclose(state["mean"], expected, rtol=1e-5)


@pytest.mark.parametrize("name", WITH)
def test_they_are_sent_in_32_bits_a_number_in_an_exchange_of_their_own(name):
    batches = jnp.zeros((STEPS, D))
    plain = costs.measure_traffic(PLAIN[name], PARAMS, batches)
    ours = costs.measure_traffic(WITH[name], MODEL, batches)
    assert ours.sent == (KEPT, *plain.sent)
    assert ours.bits_up == plain.bits_up + 32 * KEPT
    if PLAIN[name].downlink:
        short, long = PLAIN[name].downlink.bits(D), WITH[name].downlink.bits(D + KEPT)
        assert long == short + 32 * KEPT


def test_they_are_the_mean_of_those_who_came_whatever_the_sum_is_divided_by():
    cohort = cohort_of([0, 1, 2, 3], weights=[1, 0, 1, 1], denominator=7.0)
    safl = WITH["safl"]
    state, _ = with_cohort(safl, cohort, rounds=1, start=jax.device_get(start(safl)))
    expected = after_a_round(np.asarray(optima(CLIENTS))[[0, 2, 3]], STEPS)
    found = state.server.params.state["mean"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


PRIVATE = {"privacy__noise_multiplier": 1.0, "cohort__sampling": "poisson"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": "onebit_adam"}, "algorithm"),
        ({"privacy__bound": "clip", **PRIVATE}, "norm"),
        ({"algorithm": "private_sketching", "privacy__unit": "example",
          "client__batches": "subsets", **PRIVATE}, "statistics"),
    ],
)  # fmt: skip
def test_where_nothing_covers_them_they_are_refused(changes, words):
    name = f"{own.__file__}:normed"
    with pytest.raises(ValueError, match=words):
        prepare(config_with(model__name=name, data__classes=10, **changes))
