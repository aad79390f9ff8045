"""A config's privacy: calibrated, accounted in every row, or refused in one line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.config import parse, privacy
from fl_sketch.core.protocols import Algorithm, Roots
from fl_sketch.data.batches import resident
from fl_sketch.engine.rounds import advance_of
from fl_sketch.privacy import accounting
from fl_sketch.run import from_config, prepare, run
from fl_sketch.workdir import odometer
from tests.refusals import refused
from tests.run.configs import config_with, rows_of, table_in

PRIVATE = {
    "data__clients": 200,
    "cohort__sampling": "poisson",
    "cohort__size": 50,
    "client__batch": 7,
    "client__batches": "whole",
    "rounds": 6,
    "eval_every": 3,
}
SAFL = PRIVATE | {"privacy__bound": "normalise", "privacy__target_epsilon": 4.0}


def test_noise_is_calibrated_and_the_promise_is_known_before_the_run():
    promise = from_config(config_with(**SAFL)).guarantee
    plan, z = accounting.Plan(6, 50, 200), promise.noise_multiplier
    assert accounting.epsilon(plan, z, delta=1e-5) == pytest.approx(4.0, abs=1e-3)
    assert accounting.epsilon(plan, 0.999 * z, delta=1e-5) > 4.0
    assert promise.epsilon(6) == pytest.approx(4.0, abs=1e-3)
    assert (promise.delta, promise.randomness) == (1e-5, "system")
    assert from_config(config_with(**PRIVATE)).guarantee is None


@pytest.mark.slow
def test_a_run_ends_where_its_privacy_does_and_says_epsilon_in_every_row(tmp_path):
    changes = SAFL | {"privacy__noise_multiplier": 1.2, "rounds": 60}
    summary = run(config_with(**changes), tmp_path, say=lambda line: None)
    rows = table_in(tmp_path)
    plan = accounting.Plan(summary["rounds"], 50, 200)
    for row in rows:
        played = plan._replace(steps=int(row["round"]))
        spent = accounting.epsilon(played, 1.2, delta=1e-5)
        assert float(row["epsilon"]) == pytest.approx(spent)
    after = plan._replace(steps=plan.steps + 1)
    assert spent <= 4.0 < accounting.epsilon(after, 1.2, delta=1e-5)
    assert summary["epsilon"] == pytest.approx(spent) and plan.steps < 60
    assert int(rows[-1]["round"]) == summary["rounds"]


def test_the_threshold_and_the_rates_may_be_swept_in_one_program():
    config = config_with(**SAFL | {"algorithm": "dp_fedavg", "privacy__bound": "clip"})
    experiment, key = from_config(config), jax.random.key(0)
    numbers, data = parse.hyperparameters_of(config), resident(*experiment.clients)

    def point(threshold, rate):
        swept = {
            "privacy.threshold": threshold,
            "client.rate": rate,
            "client.decay": rate,
        }
        own = {**numbers, **swept}
        state = experiment.start(own, key)
        return advance_of(experiment)(own, state, Roots(key, key), data, 2)

    shapes = jax.eval_shape(jax.vmap(point), jnp.ones(3), jnp.ones(3))
    assert {leaf.shape[0] for leaf in jax.tree.leaves(shapes)} == {3}


EXAMPLES = {
    "algorithm": "private_sketching",
    "privacy__unit": "example",
    "privacy__relation": "replace_one",
    "cohort__sampling": "everyone",
}
SUBSETS = {"client__batches": "subsets", "client__batch": 2}
SKELLAM = {"privacy__noise": "skellam", "privacy__bits": 16}
DISTRIBUTED = SKELLAM | {
    "cohort__sampling": "fixed",
    "privacy__relation": "replace_one",
    "privacy__smallest_cohort": 40,
    "cohort__dropout": 0.1,
}
HEAPRIX = {"sketch__query": "heaprix", "sketch__rows": 3, "algorithm": "fedsketch"}


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "dp_fedavg", "server__rate": 1.0, "client__decay": 0.99},
        {"algorithm": "dp_normfedavg", "server__rate": 0.1},
        SAFL | {"privacy__bound": "adaptive"},
        SAFL | DISTRIBUTED,
        SAFL | {"privacy__bits": 14},
        pytest.param(SAFL | {"privacy__bits": 14} | HEAPRIX, marks=pytest.mark.slow),
        pytest.param(EXAMPLES | SUBSETS, marks=pytest.mark.slow),
        EXAMPLES | {"data__clients": 1, "client__batch": 1437},
    ],
    ids=lambda changes: ",".join(str(v) for v in changes.values()),
)
def test_what_a_config_can_ask_for_is_built(changes):
    config = config_with(**{**PRIVATE, "privacy__target_epsilon": 3.0, **changes})
    task, target = from_config(config), config.privacy.target_epsilon
    assert task.guarantee.epsilon(6) == pytest.approx(target, rel=0.01)
    assert task.last == 6
    exchanges = 2 if config.sketch.query == "heaprix" else 1
    steps = 5 if config.algorithm == "private_sketching" else 1
    assert task.guarantee.facts["releases"] == steps * exchanges


def test_an_example_hides_among_those_of_the_smallest_client():
    config = config_with(**EXAMPLES | SUBSETS, privacy__noise_multiplier=1.0)
    silent, sizes = Algorithm(None, None, None), (9, 4, 30)
    promise = privacy.guarantee_of(config, silent, None, None, 5, sizes, partition="")
    assert (promise.plan.sample, promise.plan.population) == (2, 4)
    privacy.require_sizes(promise, (4, 50))
    with refused("least 4", "with 3"):  # of another seed
        privacy.require_sizes(promise, (9, 3, 30))


INTEGERS = SKELLAM | {"cohort__sampling": "fixed", "privacy__relation": "replace_one"}


@pytest.mark.slow
def test_a_run_of_integers_is_counted_with_its_rounding(tmp_path):
    changes = SAFL | INTEGERS | {"sketch__size": 130}
    summary = run(config_with(**changes), tmp_path, say=lambda line: None)
    assert float(table_in(tmp_path)[-1]["epsilon"]) == pytest.approx(4.0, abs=1e-3)
    assert (summary["noise"], summary["accountant"]) == ("skellam", "rdp")
    (one,) = odometer.read(tmp_path).values()
    assert one.plan == from_config(config_with(**changes)).guarantee.plan
    assert one.plan.integers.lengths == (130,)  # and not the next power of two
    assert summary["bytes_up_planned"] == 130 * 16 // 8


def test_bounded_without_noise_promises_nothing():
    for row in rows_of(**PRIVATE | {"privacy__bound": "clip"}):
        assert row["epsilon"] is None and "train_loss" in row


REPLACED = {"privacy__relation": "replace_one"}
FIXED = REPLACED | {"cohort__sampling": "fixed"}
NONE = {"privacy__bound": "none"}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"privacy__bound": "clipp"}, "bound"),
        (NONE, "bound"),
        ({"privacy__threshold": 0.0}, "threshold"),
        ({"privacy__delta": 0.0}, "delta"),
        ({"privacy__target_epsilon": -1.0}, "target_epsilon"),
        ({"privacy__noise_multiplier": float("nan")}, "noise_multiplier"),
        ({"privacy__noise_multiplier": 0.1}, "one round"),
        ({"privacy__unit": "example"}, "unit"),
        ({"privacy__relation": "swap"}, "relation"),
        ({"privacy__accountant": "moments"}, "accountant"),
        ({"cohort__sampling": "fixed"}, "relation"),
        (FIXED | {"algorithm": "fedgate"}, "state"),
        ({"cohort__sampling": "replacement"}, "sampling"),
        ({"cohort__weighting": "examples"}, "weighting"),
        (SKELLAM | REPLACED, "sampling"),
        (SKELLAM, "relation"),
        (INTEGERS | {"algorithm": "ef21"}, "algorithm"),
        (INTEGERS | {"privacy__bits": 33}, "bits"),
        (INTEGERS | {"privacy__bits": 0}, "bits"),  # which would have no shares
        (INTEGERS | {"privacy__bound": "adaptive"}, "bound"),
        (INTEGERS | {"privacy__smallest_cohort": 51}, "smallest_cohort"),
        (INTEGERS | {"privacy__accountant": "pld"}, "accountant"),
        (INTEGERS | {"privacy__bits": 8, "privacy__target_epsilon": 0.1}, "bits"),
        ({"privacy__bits": 16, "algorithm": "cd_adam"}, "algorithm"),
        ({"algorithm": "dp_fedavg"}, "bound"),
        ({"algorithm": "private_sketching"}, "unit"),
        (EXAMPLES, "bound"),
        (EXAMPLES | NONE | {"client__batch": 3}, "batch"),
        (EXAMPLES | NONE | SUBSETS | {"client__batch": 8}, "batch"),
        ({"client__decay": 0.0}, "decay"),
    ],
    ids=str,
)
def test_what_cannot_be_promised_is_refused_in_one_line(changes, name):
    with refused(match=name):
        from_config(config_with(**{**SAFL, **changes}))


@pytest.mark.slow
def test_examples_of_one_client_that_are_not_finite_end_no_private_run(tmp_path):
    """The client counts as zero; a refusal would tell all of its data."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(66, 4)).astype(np.float32)
    arrays = {"train_inputs": inputs[:60], "test_inputs": inputs[60:]}
    arrays |= {"train_targets": np.arange(60) % 2, "test_targets": np.arange(6) % 2}
    arrays["train_inputs"][7] = np.nan
    np.savez(tmp_path / "one.npz", **arrays)
    keys = {"data__name": "npz/one", "data__classes": 2, "data__clients": 6}
    keys |= {"cohort__sampling": "everyone", "rounds": 2, "eval_every": 2}
    with pytest.raises(ValueError, match="finite numbers .*in train_inputs"):
        prepare(config_with(**keys), str(tmp_path))
    keys |= {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0}
    (row,) = rows_of(str(tmp_path), **keys)
    assert np.isfinite(row["test_loss"]) and np.isfinite(row["train_loss"])
    assert row["mechanism_rejected"] == 1
