"""What does not fit together is refused by `engine.simulate` in one line."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, data, engine, sketch
from fl_sketch.privacy import mechanism
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local
from tests.engine.regression import (
    CLIENTS,
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
    error,
    loss,
    private,
    ran,
    simulated,
)
from tests.refusals import refused

EMPTY = {"e": np.zeros(0, np.float32)}
NOISY_EMPTY = {"algorithm": PRIVATE, "cohort": POISSON, "params": PARAMS | EMPTY}


def of_loss(own):
    return {"algorithm": algorithms.fedavg(own, client_rate=0.1)}


def raised(params, batch, key=None):
    return loss(params, batch) if key is None else 1 / 0


def looped(params, batch):
    def add(total, example):
        return total + loss(params, jax.tree.map(lambda one: one[None], example)), None

    return jax.lax.scan(add, 0.0, batch)[0]


def returning(diagnostics):
    """Returns an algorithm whose clients return these, made of a length."""
    fedavg = algorithms.fedavg(loss, client_rate=0.05)

    def run(server, state, batches, keys):
        work = fedavg.local.run(server, state, batches, keys)
        return work._replace(diagnostics=diagnostics(optax.tree.norm(work.update)))

    return fedavg._replace(local=fedavg.local._replace(run=run))


REFUSED = [
    ({"algorithm": loss}, TypeError, "algorithm .*type function"),
    ({"clients": (INPUTS, TARGETS)}, TypeError, "clients .*data.clients"),
    ({"params": {"w": np.zeros(4, int)}}, TypeError, r"float32, got int64 at \['w'"),
    ({"params": {"w": jnp.zeros(4, jnp.bfloat16)}}, TypeError, "bfloat16.*other"),
    ({"params": {}}, TypeError, "params"),
    ({"params": PARAMS | EMPTY}, ValueError, r"params .*\(0,\) at \['e'\]"),
    (NOISY_EMPTY, ValueError, r"params .*\(0,\) at \['e'\]"),
    ({"params": {"w": np.zeros(3)}}, TypeError, "fit together, got TypeError"),
    ({"params": {"v": np.zeros(4)}}, ValueError, "together, got KeyError: 'w'"),
    (of_loss(raised), ValueError, "ZeroDivisionError"),
    (of_loss(lambda p: 0.0), TypeError, r"loss .*got \(p\)"),
    (
        {"algorithm": SAFL._replace(local=local.one_gradient(3))},
        TypeError,
        "loss .*got 3",
    ),
    (of_loss(lambda p, b: p["w"]), TypeError, r"loss .*shape \(4,\)"),
    (of_loss(lambda p, b: (loss(p, b), 1)), TypeError, "one float, got tuple"),
    (of_loss(lambda p, b: None), TypeError, "got NoneType"),
    ({"algorithm": SAFL._replace(server=0.1)}, TypeError, "optax trans.*got 0.1"),
    ({"algorithm": PRIVATE, "cohort": None}, ValueError, "9, .*denominator=4"),
    (
        {"algorithm": PRIVATE, "cohort": engine.with_replacement(POPULATION, 4)},
        ValueError,
        "no accountant",
    ),
    (
        {"algorithm": EF21, "cohort": engine.with_replacement(POPULATION, 4)},
        ValueError,
        "different clients .*with_replacement",
    ),
    (
        {
            "algorithm": algorithms.ef21(
                loss, compressor=compressors.top_k(1), server=optax.sgd(0.05)
            ),
            "cohort": engine.weighted(
                engine.with_dropout(engine.everyone(POPULATION), 0.5), jnp.ones_like
            ),
        },
        ValueError,
        "without their average",
    ),
    (
        {
            "algorithm": PRIVATE,
            "cohort": engine.weighted(POISSON, lambda ids: ids + 1.0),
        },
        ValueError,
        "no accountant",
    ),
    (
        {
            "algorithm": algorithms.scaffold(
                loss, client_rate=0.05, server_rate=1.0, steps=5
            )
        },
        ValueError,
        "steps=2",
    ),
    (
        {
            "algorithm": algorithms.fedsketch(
                loss,
                sketch=sketch.identity(),
                client_rate=0.1,
                server_rate=1.0,
                query="heaprix",
                heavy=1,
            )
        },
        ValueError,
        "sketch",
    ),
    ({"key": 0}, TypeError, "key"),
    ({"rounds": 0}, ValueError, "rounds"),
    ({"every": 0}, ValueError, "every"),
    ({"checkpoint_every": 0}, ValueError, "checkpoint_every"),
    ({"cohort": 10}, ValueError, "cohort <= 9"),
    ({"cohort": engine.everyone(5)}, ValueError, "cohort .*got one of 5"),
    ({"batches": "all"}, ValueError, "batches='all'"),
    ({"data": "disk"}, ValueError, "data='disk'"),
    (
        {"data": "streamed", "batches": "whole", "batch": 10},
        ValueError,
        "data='streamed'",
    ),
    ({"batches": "whole", "batch": 7}, ValueError, "batch=7 and clients of 10"),
    ({"batches": "subsets", "batch": 11}, ValueError, "batch=11"),
    ({"steps": 0}, ValueError, "steps"),
    ({"batch": 1.5}, TypeError, "batch"),
    ({"devices": 1}, TypeError, "devices.*got 1"),
    ({"devices": "cpu"}, TypeError, "devices.*got 'cpu'"),
    ({"relation": "near"}, ValueError, "relation='near'"),
    ({"delta": None}, TypeError, "delta=None"),
    ({"target_epsilon": -1.0}, ValueError, "target_epsilon=-1.0"),
    ({"target_epsilon": 1.0}, ValueError, "target_epsilon=1.0"),
    ({"algorithm": private(0.0), "target_epsilon": 1.0}, ValueError, "target_epsilon"),
    (
        {"algorithm": lambda z: SAFL, "target_epsilon": 1.0},
        ValueError,
        "target_epsilon",
    ),
    (
        {"algorithm": PRIVATE, "cohort": POISSON, "target_epsilon": 0.01},
        ValueError,
        "target_epsilon=0.01",
    ),
    ({"look": 3}, TypeError, "look=3"),
    ({"look": lambda params: 3.0}, ValueError, "look .*3.0"),
    ({"look": lambda params: {"epsilon": 0}}, ValueError, "look .*'epsilon'"),
    ({"look": lambda params: {"train_loss": 0}}, ValueError, "look .*'train_loss'"),
    ({"on_row": 3}, TypeError, "on_row=3"),
    ({"per_client": 3}, TypeError, "per_client=3"),
    ({"per_client": lambda p, e: 3.0}, ValueError, "per_client"),
    ({"per_client": lambda p, e: {"w": p["w"]}}, ValueError, "per_client"),
    ({"per_client": error, "held_out": INPUTS}, TypeError, "held_out"),
    (
        {"per_client": error, "held_out": data.clients((INPUTS, TARGETS), OWNERS % 3)},
        ValueError,
        "held_out of 9 .*got 3",
    ),
    ({"download": "all"}, ValueError, "download='all'"),
    ({"state": 1}, TypeError, "state .* of type int"),
    ({"look": None}, TypeError, "look=None"),
    ({"look": lambda params: {"mechanism_a": 0}}, ValueError, "look .*'mechanism_a'"),
    ({"look": lambda params: {3: 0}}, ValueError, r"look .*\[3\]"),
    ({"per_client": lambda p, e: 1 / 0}, ValueError, "per_client.*ZeroDivisionError"),
    ({"per_client": lambda p, e: {"a,b": e[1]}}, ValueError, "per_client.*'a,b'"),
    ({"held_out": CLIENTS}, ValueError, "per_client, .*got none"),
    (
        {"per_client": error, "held_out": data.clients((INPUTS, OWNERS), OWNERS)},
        ValueError,
        "held_out .*int32",
    ),
    ({"workdir": 3}, TypeError, "workdir=3"),
    ({"bar": "x"}, TypeError, "bar='x'"),
    ({"partition": 3}, TypeError, "partition=3"),
    ({"params": {"w": np.full(4, np.nan, np.float32)}}, ValueError, r"finite.*\['w'"),
    ({"algorithm": returning(lambda work: jnp.ones(3))}, TypeError, r"diagn.*\(3,\)"),
    ({"algorithm": returning(lambda work: {"v": jnp.ones(3)})}, TypeError, "diagnos"),
    ({"algorithm": returning(lambda work: {"a,b": work})}, TypeError, "diagnos.*a,b"),
    (
        {"algorithm": lambda z: private(0.01), "cohort": POISSON, "target_epsilon": 2},
        ValueError,
        "multiplier .*given, 0, got noise_multiplier=0.01",
    ),
    (of_loss(looped), TypeError, "loops .* start from numbers made of its params"),
]


@pytest.mark.parametrize(("change", "kind", "words"), REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(change, kind, words):
    with pytest.raises(kind, match=words) as raised:
        simulated(**{"rounds": 3} | change)
    assert "\n" not in str(raised.value)


def test_diagnostics_may_be_plain_numbers():
    algorithm = returning(lambda length: {"plain": 1.5, "length": length})
    assert simulated(algorithm, rounds=3).history[-1]["train_plain"] == 1.5


@pytest.mark.parametrize("noise_multiplier", [1.0, 1.3, 1.7, 2.1])
def test_the_smallest_target_that_a_refusal_names_is_kept(noise_multiplier):
    change = {"algorithm": private(noise_multiplier), "cohort": POISSON, "rounds": 9}
    with pytest.raises(ValueError, match="target_epsilon >= ") as raised:
        simulated(**change, target_epsilon=0.01)
    least = float(re.search(">= ([0-9.]+) ", str(raised.value))[1])
    run = simulated(**change, target_epsilon=least)
    assert int(run.state.server.round) >= 1
    assert run.history[-1]["epsilon"] <= least


def test_several_processes_have_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("fl_sketch.engine.multiprocess.several", lambda: True)
    with pytest.raises(ValueError, match="one process with workdir") as raised:
        simulated(rounds=3, workdir=tmp_path)
    assert "\n" not in str(raised.value)


def test_a_state_of_another_algorithm_or_population_is_refused():
    begun = ran(SAFL, rounds=4).state
    other = data.clients((INPUTS, TARGETS), np.arange(COUNT) % 3)
    for change in ({"algorithm": EF21}, {"clients": other, "cohort": 2}):
        with pytest.raises(ValueError, match="state"):
            simulated(rounds=1, state=begun, **change)


@pytest.mark.parametrize(
    ("examples", "owners", "words"),
    [
        ((INPUTS, TARGETS[:5]), np.arange(COUNT), r"shapes \(90, 4\), \(5,\)"),
        ((), np.arange(COUNT), "got shapes none"),
        ((INPUTS, 3.0), np.arange(COUNT), r"\(90, 4\), \(\)"),
        (np.zeros(2, [("a", "f4")]), [0, 1], "to be numbers, got .*'a'"),
        (INPUTS[:3], ["a", None, "b"], "3 integers or strings"),
        (np.array(["a"] * 4), np.arange(4), "to be numbers, got <U1"),
        (np.array([2**40]), [0], r"lie in \[-2\^31"),
        (INPUTS, np.arange(5), "90 integers or strings"),
        (INPUTS, np.arange(COUNT) / 2, "integers or strings.*float64"),
        (INPUTS, data.iid(200, 3, seed=0), "of 90 examples"),
        (INPUTS, data.Partition(np.array([-1, 0]), np.array([0, 2])), "of 90 examples"),
        (INPUTS, data.Partition(np.arange(2), np.array([0, 2, 2])), "of 90 examples"),
    ],
)
def test_examples_that_cannot_be_are_refused_in_one_line(examples, owners, words):
    with pytest.raises((ValueError, TypeError), match=words) as raised:
        data.clients(examples, owners)
    assert "\n" not in str(raised.value)


def with_one(value, row=7):
    """Returns the inputs with one other number, of a client or of none."""
    inputs = INPUTS.astype(np.float64)
    inputs[row, 2] = value
    return inputs


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e300])
def test_data_that_are_not_finite_on_devices_are_refused_by_their_row(value):
    bad = data.clients({"x": with_one(value), "y": TARGETS}, OWNERS)
    algorithm = algorithms.fedavg(
        lambda p, b: loss(p, (b["x"], b["y"])), client_rate=0.05
    )
    with refused("examples['x']", value, "row 7"):
        simulated(algorithm, clients=bad)


def test_examples_of_no_client_may_be_anything():
    rows = np.setdiff1d(np.arange(COUNT), [7])
    share = data.Partition(rows.astype(np.int32), np.arange(0, COUNT, 1)[:POPULATION])
    share = share._replace(starts=np.append(share.starts, len(rows)))
    clients = data.clients((with_one(np.nan), TARGETS), share)
    assert np.isfinite(simulated(clients=clients, rounds=3).params["w"]).all()


def test_a_private_run_is_not_ended_by_the_data_of_one_client():
    bad = data.clients((with_one(np.nan), TARGETS), OWNERS)
    run = simulated(PRIVATE, clients=bad, cohort=POISSON, rounds=3)
    assert np.isfinite(run.params["w"]).all()


def of_classes(logits, labels):
    """Returns arguments of a run that classifies these labels by four numbers."""
    classes = data.clients((INPUTS, np.asarray(labels)), OWNERS)

    def classified(params, batch):
        return logits(params["w"] * batch[0], batch[1]).mean()

    algorithm = algorithms.fedavg(classified, client_rate=0.05)
    return {"algorithm": algorithm, "clients": classes, "rounds": 3}


def test_a_message_that_is_longer_than_the_model_is_warned_of():
    longer = algorithms.safl(
        loss, sketch=sketch.count_sketch(5), client_rate=0.05, server=optax.adam(0.05)
    )
    with pytest.warns(UserWarning, match="5 numbers is longer .* has 4"):
        simulated(longer, rounds=1)


def test_a_column_of_a_caller_is_not_replaced_by_a_released_one():
    adaptive = SAFL._replace(
        mechanism=mechanism.adaptive(
            1.0, noise_multiplier=2.0, denominator=4, count_noise=2.0
        )
    )
    looks = {"threshold": {"algorithm": adaptive, "cohort": POISSON}, "asked": {}}
    for name, options in looks.items():
        with pytest.raises(ValueError, match=f"look .*{name}"):
            simulated(look=lambda params, name=name: {name: 0.75}, **options)


def test_a_text_is_no_loss_that_diverged():
    run = simulated(look=lambda params: {"test_loss": "none"})
    assert run.history[-1]["test_loss"] == "none"


def test_a_budget_that_is_spent_allows_no_more_rounds():
    spent = {"target_epsilon": 6.0, "cohort": POISSON, "rounds": 100}
    run = simulated(PRIVATE, **spent)
    done = run.history[-1]["round"]
    assert done < 100
    with refused(f"more than {done} rounds", "target_epsilon=6.0, which is spent"):
        simulated(PRIVATE, state=run.state, **spent)
