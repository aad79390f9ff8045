"""A config's privacy: calibrated, accounted in every row, or refused in one line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.config import parse
from fl_sketch.privacy import accounting
from fl_sketch.run import prepare, run, task_of
from fl_sketch.workdir import odometer
from tests.run.configs import config_with, read_json, rows_of, table_in

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
    promise = task_of(config_with(**SAFL)).known.guarantee
    plan, z = accounting.Plan(6, 50, 200), promise.noise_multiplier
    assert accounting.epsilon(plan, z, delta=1e-5) == pytest.approx(4.0, abs=1e-3)
    assert accounting.epsilon(plan, 0.999 * z, delta=1e-5) > 4.0
    assert promise.epsilon(6) == pytest.approx(4.0, abs=1e-3)
    assert (promise.delta, promise.randomness) == (1e-5, "system")
    assert task_of(config_with(**PRIVATE)).known.guarantee is None


def test_a_run_ends_where_its_privacy_does_and_says_epsilon_in_every_row(tmp_path):
    changes = SAFL | {"privacy__noise_multiplier": 1.2, "rounds": 60}
    lines = []
    summary = run(config_with(**changes), tmp_path, say=lines.append)
    rows = table_in(tmp_path)
    plan = accounting.Plan(summary["rounds"], 50, 200)
    for row in rows:
        played = plan._replace(steps=int(row["round"]))
        spent = accounting.epsilon(played, 1.2, delta=1e-5)
        assert float(row["epsilon"]) == pytest.approx(spent)
    after = plan._replace(steps=plan.steps + 1)
    assert spent <= 4.0 < accounting.epsilon(after, 1.2, delta=1e-5)
    assert summary["epsilon"] == pytest.approx(spent) and plan.steps < 60
    assert summary["noise_multiplier"] == 1.2 and summary["delta"] == 1e-5
    assert int(rows[-1]["round"]) == summary["rounds"]
    assert read_json(tmp_path / "summary.json") == summary
    (at,) = [n for n, line in enumerate(lines) if line.split()[-1] == "epsilon"]
    for row, line in zip(rows, lines[at + 1 :], strict=False):
        shown = float(line.split()[-1])
        assert 0 <= shown - float(row["epsilon"]) < 1e-4
    assert run(config_with(**changes), tmp_path, say=lines.append) == summary


def test_the_threshold_and_the_rates_may_be_swept_in_one_program():
    config = config_with(**SAFL | {"algorithm": "dp_fedavg", "privacy__bound": "clip"})
    setup = prepare(config)
    numbers, key = parse.numbers_of(config), jax.random.key(0)

    def point(threshold, rate):
        swept = {
            "privacy.threshold": threshold,
            "client.rate": rate,
            "client.decay": rate,
        }
        own = {**numbers, **swept}
        return setup.play(own).rounds(setup.start(own, key), key, setup.data(0), 2)

    shapes = jax.eval_shape(jax.vmap(point), jnp.ones(3), jnp.ones(3))
    assert {leaf.shape[0] for leaf in jax.tree.leaves(shapes)} == {3}


EXAMPLES = {
    "algorithm": "private_sketching",
    "privacy__unit": "example",
    "privacy__relation": "replace_one",
    "cohort__sampling": "everyone",
}
SUBSETS = {"client__batches": "subsets", "client__batch": 2}
SHARES = {
    "cohort__sampling": "fixed",
    "privacy__relation": "replace_one",
    "privacy__smallest_cohort": 40,
    "cohort__dropout": 0.1,
}


SKELLAM = {"privacy__noise": "skellam", "privacy__bits": 16}
HEAPRIX = {"sketch__query": "heaprix", "sketch__rows": 3}


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "dp_fedavg", "server__rate": 1.0, "client__decay": 0.99},
        {"algorithm": "dp_normfedavg", "server__rate": 0.1},
        SAFL | {"privacy__bound": "adaptive"},
        SAFL | SHARES | SKELLAM,
        SAFL | {"privacy__bits": 14},
        pytest.param(
            SAFL | {"privacy__bits": 14, "algorithm": "fedsketch"} | HEAPRIX,
            marks=pytest.mark.slow,
        ),
        pytest.param(EXAMPLES | SUBSETS, marks=pytest.mark.slow),
        EXAMPLES | {"data__clients": 1, "client__batch": 1437},
    ],
    ids=lambda changes: ",".join(str(v) for v in changes.values()),
)
def test_what_a_config_can_ask_for_is_built(changes):
    config = config_with(**{**PRIVATE, "privacy__target_epsilon": 3.0, **changes})
    task, target = task_of(config), config.privacy.target_epsilon
    assert task.known.guarantee.epsilon(6) == pytest.approx(target, rel=0.01)
    assert task.last == 6
    exchanges = 2 if config.sketch.query == "heaprix" else 1
    steps = 5 if config.algorithm == "private_sketching" else 1
    assert task.facts["releases"] == steps * exchanges


INTEGERS = SKELLAM | {"cohort__sampling": "fixed", "privacy__relation": "replace_one"}
FEW_BITS = {"privacy__bits": 8, "privacy__target_epsilon": 0.1}


def test_a_run_of_integers_is_priced_by_bits_counts_its_wraps_and_says_so(tmp_path):
    changes = SAFL | INTEGERS | {"sketch__numbers": 130}
    lines = []
    summary = run(config_with(**changes), tmp_path, say=lines.append)
    first, last = table_in(tmp_path)
    assert int(first["bytes_up_total"]) == 3 * 50 * 130 * 16 // 8
    assert float(last["mechanism_wraps"]) == 0
    assert float(last["epsilon"]) == pytest.approx(4.0, abs=1e-3)
    assert (summary["noise"], summary["accountant"]) == ("skellam", "rdp")
    assert any("skellam at 16 bits" in line for line in lines)
    (one,) = odometer.read(tmp_path).values()
    plan = task_of(config_with(**changes)).known.guarantee.plan
    assert one.plan == plan and plan.integers.lengths == (130,)


def test_bounded_without_noise_promises_nothing():
    for row in rows_of(**PRIVATE | {"privacy__bound": "clip"}):
        assert row["epsilon"] is None and "train_loss" in row


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy__bound": "clipp"}, "privacy: .*bound='clipp'"),
        ({"privacy__bound": "none"}, "bound='none'"),
        ({"privacy__threshold": 0.0}, "privacy.threshold=0.0"),
        ({"privacy__delta": 0.0}, "delta=0.0"),
        ({"privacy__delta": 1e-16}, "delta=1e-16"),
        ({"privacy__target_epsilon": -1.0}, "target_epsilon=-1.0"),
        ({"privacy__noise_multiplier": float("nan")}, "noise_multiplier=nan"),
        ({"privacy__noise_multiplier": 0.1}, "cost of one round"),
        ({"privacy__unit": "example"}, "unit='example'"),
        ({"privacy__relation": "swap"}, "relation='swap'"),
        ({"privacy__accountant": "moments"}, "accountant='moments'"),
        ({"privacy__accountant": "rdp", "privacy__relation": "replace_one"}, "pld"),
        ({"cohort__sampling": "fixed"}, "relation=replace_one, or draw poisson"),
        (
            {
                "cohort__sampling": "fixed",
                "privacy__relation": "replace_one",
                "algorithm": "fedgate",
            },
            "clients keep a state, got cohort.sampling=fixed",
        ),
        ({"cohort__sampling": "replacement"}, "cohort: .*sampling='replacement'"),
        ({"cohort__weighting": "examples"}, "cohort: .*weighting='examples'"),
        ({"privacy__noise": "distributed"}, "noise='distributed'"),
        (SKELLAM | {"privacy__relation": "replace_one"}, "sampling='poisson'"),
        (SKELLAM, "relation=replace_one"),
        (INTEGERS | {"algorithm": "qsgd"}, "algorithm=qsgd"),
        (INTEGERS | {"algorithm": "ef21"}, "algorithm=ef21"),
        (INTEGERS | {"privacy__bits": 0}, "bits=8 to 32 .*bits=0"),
        (INTEGERS | {"privacy__bits": 7}, "bits=7"),
        (INTEGERS | {"privacy__bits": 33}, "bits=33"),
        (INTEGERS | {"privacy__bound": "adaptive"}, "bound='adaptive'"),
        (INTEGERS | {"privacy__smallest_cohort": 51}, "smallest_cohort=51"),
        (INTEGERS | {"privacy__accountant": "pld"}, "accountant=rdp"),
        (INTEGERS | FEW_BITS, "bits=8"),
        ({"privacy__bits": 16, "algorithm": "cd_adam"}, "algorithm=cd_adam"),
        ({"algorithm": "dp_fedavg"}, "bound='normalise'"),
        ({"algorithm": "private_sketching"}, "unit='client'"),
        (EXAMPLES, "bound='normalise'"),
        (EXAMPLES | {"privacy__bound": "none", "client__batch": 3}, "client.batch=3"),
        (
            EXAMPLES | {"privacy__bound": "none", "client__batches": "fresh"},
            "client: .*batches='fresh'",
        ),
        (
            EXAMPLES
            | {
                "privacy__bound": "none",
                "client__batches": "subsets",
                "client__batch": 8,
            },
            "batch=8",
        ),
        ({"client__batches": "all"}, "batches='all'"),
        ({"client__decay": 0.0}, "client.decay=0.0"),
        (
            {
                "privacy__bound": "adaptive",
                "privacy__noise_multiplier": 5.0,
                "privacy__target_epsilon": 0.0,
            },
            "config.privacy: .*quantile_noise > 2.5 .*quantile_noise=2.5",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_promised_is_refused_in_one_line(changes, words):
    with pytest.raises(ValueError, match=words) as caught:
        task_of(config_with(**{**SAFL, **changes}))
    assert "\n" not in str(caught.value)


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


def test_runs_have_a_total_where_they_deal_alike_whatever_the_data_are():
    """What an odometer says of the dealing follows from the config alone."""

    def dealt(**changes):
        return prepare(config_with(**SAFL | changes)).guarantee.partition

    first = dealt(data__partition="dirichlet")
    assert first == dealt(data__partition="dirichlet", seed=7)
    for change in (
        {"data__partition": "iid"},
        {"data__partition_seed": 3},
        {"data__alpha": 0.6},
        {"data__held_out": 0.2},
    ):
        assert first != dealt(**{"data__partition": "dirichlet"} | change)
    assert not prepare(config_with(**SAFL, data__public=True)).guarantee.partition
