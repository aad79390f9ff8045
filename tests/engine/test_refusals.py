"""What does not fit together is refused by `simulate` in one line."""

import re

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, data, engine, sketch
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local
from tests.engine.regression import (
    COUNT,
    EF21,
    INPUTS,
    OWNERS,
    PARAMS,
    POISSON,
    POPULATION,
    PRIVATE,
    SAFL,
    TARGETS,
    loss,
    private,
    ran,
    simulated,
)
from tests.refusals import refused

NOISY = {"algorithm": PRIVATE, "cohort": POISSON}
AGAIN = engine.with_replacement(POPULATION, 4)
UNKNOWN = engine.weighted(
    engine.with_dropout(engine.everyone(POPULATION), 0.5), jnp.ones_like
)
TOP = algorithms.ef21(loss, compressor=compressors.top_k(1), server=optax.sgd(0.05))
OF_FIVE = algorithms.scaffold(loss, client_rate=0.05, server_rate=1.0, steps=5)
FEWER = data.clients((INPUTS, TARGETS), OWNERS % 3)


def of_loss(own):
    return {"algorithm": algorithms.fedavg(own, client_rate=0.1)}


def returning(diagnostics):
    """Returns an algorithm whose clients return these, made of a length."""
    fedavg = algorithms.fedavg(loss, client_rate=0.05)

    def run(server, state, batches, keys):
        work = fedavg.local.run(server, state, batches, keys)
        return work._replace(diagnostics=diagnostics(optax.tree.norm(work.update)))

    return fedavg._replace(local=fedavg.local._replace(run=run))


def diagnostics(value):
    return {"algorithm": returning(lambda length: value)}


REFUSED = [
    ({"algorithm": loss}, "algorithm"),
    ({"algorithm": SAFL._replace(local=local.one_gradient(3))}, "loss"),
    ({"algorithm": SAFL._replace(server=0.1)}, "optax"),
    (of_loss(lambda p: 0.0), "loss"),
    (of_loss(lambda p, b: p["w"]), "loss"),
    (of_loss(lambda p, b: (loss(p, b), 1)), "loss"),
    (of_loss(lambda p, b: None), "loss"),
    (of_loss(lambda p, b: 1 / 0), "ZeroDivisionError"),
    (diagnostics(jnp.ones(3)), "diagnostics"),
    (diagnostics({"v": jnp.ones(3)}), "diagnostics"),
    (diagnostics({"a,b": 1.0}), "diagnostics"),
    ({"clients": (INPUTS, TARGETS)}, "clients"),
    ({"params": {"w": np.zeros(4, int)}}, "'w'"),
    ({"params": {}}, "params"),
    ({"params": PARAMS | {"e": np.zeros(0, np.float32)}}, "'e'"),
    ({"params": {"w": np.zeros(3)}}, "fit together"),
    ({"params": {"v": np.zeros(4)}}, "'w'"),
    ({"params": {"w": np.full(4, np.nan, np.float32)}}, "'w'"),
    ({"algorithm": PRIVATE, "cohort": None}, "denominator"),
    ({"algorithm": PRIVATE, "cohort": AGAIN}, "accountant"),
    (NOISY | {"cohort": engine.weighted(POISSON, jnp.ones_like)}, "accountant"),
    (NOISY | {"target_epsilon": 0.01}, "target_epsilon"),
    (NOISY | {"algorithm": private(1e-300)}, "noise_multiplier"),
    ({"algorithm": lambda z: SAFL, "target_epsilon": 1.0}, "target_epsilon"),
    ({"target_epsilon": 1.0}, "target_epsilon"),
    ({"relation": "near"}, "relation"),
    ({"delta": None}, "delta"),
    ({"algorithm": EF21, "cohort": AGAIN}, "with_replacement"),
    ({"algorithm": TOP, "cohort": UNKNOWN}, "average"),
    ({"algorithm": OF_FIVE}, "steps"),
    ({"key": 0}, "key"),
    ({"rounds": 0}, "rounds"),
    ({"every": 0}, "every"),
    ({"checkpoint_every": 0}, "checkpoint_every"),
    ({"cohort": 10}, "cohort"),
    ({"cohort": engine.everyone(5)}, "cohort"),
    ({"batches": "all"}, "batches"),
    ({"batches": "whole", "batch": 7}, "batch"),
    ({"batches": "subsets", "batch": 11}, "batch"),
    ({"data": "disk"}, "data"),
    ({"data": "streamed", "batches": "whole", "batch": 10}, "data"),
    ({"steps": 0}, "steps"),
    ({"batch": 1.5}, "batch"),
    ({"download": "all"}, "download"),
    ({"state": 1}, "state"),
    ({"look": lambda params: 3.0}, "look"),
    ({"look": lambda params: {"asked": 1}}, "asked"),
    ({"look": lambda params: {"note": "a\nb"}}, "note"),
    ({"look": lambda params: {"a,b": 1}}, "look"),
    ({"look": lambda params: {"train_loss": 0}}, "look"),
]


@pytest.mark.parametrize(("change", "name"), REFUSED, ids=range(len(REFUSED)))
def test_what_does_not_fit_is_refused_in_one_line(change, name):
    with refused(match=name, error=(ValueError, TypeError)):
        simulated(**{"rounds": 3} | change)


def test_the_smallest_target_that_a_refusal_names_is_kept():
    change = {"algorithm": private(1.7), "cohort": POISSON, "rounds": 9}
    with pytest.raises(ValueError, match="target_epsilon >= ") as raised:
        simulated(**change, target_epsilon=0.01)
    least = float(re.search(">= ([0-9.]+) ", str(raised.value))[1])
    run = simulated(**change, target_epsilon=least)
    assert int(run.state.server.round) >= 1
    assert run.history[-1]["epsilon"] <= least


def test_a_state_of_another_algorithm_or_population_is_refused():
    begun = ran(SAFL, rounds=4).state
    for change in ({"algorithm": EF21}, {"clients": FEWER, "cohort": 2}):
        with pytest.raises(ValueError, match="state"):
            simulated(rounds=1, state=begun, **change)


@pytest.mark.parametrize(
    ("examples", "owners"),
    [
        ((INPUTS, TARGETS[:5]), np.arange(COUNT)),
        ((), np.arange(COUNT)),
        (np.array(["a"] * 4), np.arange(4)),
        (np.array([2**40]), [0]),
        (INPUTS, np.arange(5)),
        (INPUTS, np.arange(COUNT) / 2),
        (INPUTS, data.iid(200, 3, seed=0)),
        (INPUTS, data.Partition(np.array([-1, 0]), np.array([0, 2]))),
    ],
    ids=range(8),
)
def test_examples_that_cannot_be_are_refused_in_one_line(examples, owners):
    with refused(error=(ValueError, TypeError)):
        data.clients(examples, owners)


def with_one(value, row=7):
    """Returns the inputs with one other number."""
    inputs = INPUTS.astype(np.float64)
    inputs[row, 2] = value
    return inputs


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_data_that_are_not_finite_are_warned_of(value):
    bad = data.clients((with_one(value), TARGETS), OWNERS)
    with pytest.warns(UserWarning, match="finite"):
        simulated(clients=bad, cohort=None, batches="whole", batch=10)


@pytest.mark.slow
def test_a_private_run_is_not_ended_by_the_data_or_the_size_of_one_client():
    """An error would say what it has, or how many."""
    bad = data.clients((with_one(np.nan), TARGETS), OWNERS)
    for change in ({"clients": bad}, {"batches": "subsets", "batch": 11}):
        run = simulated(PRIVATE, cohort=POISSON, rounds=3, **change)
        assert np.isfinite(run.params["w"]).all()


def test_a_message_that_is_longer_than_the_model_is_warned_of():
    longer = algorithms.safl(
        loss, sketch=sketch.count_sketch(5), client_rate=0.05, server=optax.adam(0.05)
    )
    with pytest.warns(UserWarning, match="longer"):
        simulated(longer, rounds=1)


def test_a_budget_that_is_spent_allows_no_more_rounds():
    spent = {"target_epsilon": 6.0, "cohort": POISSON, "rounds": 100}
    run = simulated(PRIVATE, **spent)
    assert run.history[-1]["round"] < 100
    with refused("target_epsilon"):
        simulated(PRIVATE, state=run.state, **spent)
