"""One budget, asked everywhere: runs, sweeps, comparisons and Python stop alike."""

import pytest

from fl_sketch.engine.loop import NotFinite
from fl_sketch.privacy import accounting
from fl_sketch.run import run
from fl_sketch.sweep import comparison, sweep
from fl_sketch.sweep.comparison import Comparison, Method
from fl_sketch.workdir import odometer
from tests.refusals import refused
from tests.run.configs import (
    config_with,
    killed_at,
    played,
    quiet,
    table_in,
)

pytestmark = pytest.mark.slow

PRIVATE = {
    "data__clients": 200,
    "cohort__sampling": "poisson",
    "cohort__size": 50,
    "client__batch": 7,
    "client__batches": "whole",
    "rounds": 12,
    "eval_every": 5,
    "privacy__bound": "normalise",
    "privacy__target_epsilon": 4.0,
    "compute__devices": 1,
}
GIVEN = PRIVATE | {"privacy__noise_multiplier": 1.2}  # whose budget ends early
SIMULATED = {"privacy__randomness": "seed"}
OVER = ["privacy.threshold=1,2", "seed=0,1"]


def budget():
    plan, rounds = accounting.Plan(12, 50, 200), range(1, 13)
    spent = [
        accounting.epsilon(plan._replace(steps=n), 1.2, delta=1e-5) for n in rounds
    ]
    return sum(one <= 4.0 for one in spent)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    return folder, sweep(config_with(**GIVEN), OVER, folder, say=quiet)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, run(config_with(**GIVEN), folder, say=quiet)


def test_a_run_a_sweep_and_python_end_with_the_same_round(swept, ran):
    assert 5 < budget() < 12
    summary = ran[1]
    assert summary["rounds"] == budget()
    rounds = {int(row["round"]) for row in table_in(swept[0], "sweep.csv")}
    assert rounds == {5, budget()}
    end = played(config_with(**GIVEN))
    assert int(end.state.server.round) == budget()
    assert end.history[-1]["epsilon"] == summary["epsilon"] <= 4.0


def test_a_search_has_the_noise_of_the_run_and_is_counted(tmp_path):
    base = config_with(**PRIVATE | SIMULATED | {"rounds": 4, "eval_every": 2})
    methods = {"SAFL": Method({}, {"server.rate": (0.01, 0.03)})}
    both = Comparison(base, methods, seeds=(0, 1), tuning_rounds=2)
    (row,) = comparison.run(both, tmp_path, say=quiet)
    searched, reported = (
        odometer.read(tmp_path / "safl" / part).values() for part in ("tuning", "seeds")
    )
    assert len(searched) == len(reported) == 2
    assert {one.plan.steps for one in searched} == {2}
    assert {one.plan.steps for one in reported} == {4}
    (z,) = {one.noise_multiplier for one in (*searched, *reported)}
    plan = accounting.Plan(4, 50, 200)
    assert z == pytest.approx(accounting.calibrate(plan, epsilon=4.0, delta=1e-5), 1e-4)
    entries = odometer.read(tmp_path)
    assert len(entries) == 4
    assert row["epsilon"] == pytest.approx(4.0, rel=1e-3)
    for point in table_in(tmp_path, "search.csv"):
        assert 1 < float(point["epsilon"]) < 4 and point["randomness"] == "simulated"
    total = odometer.total(entries)
    assert total.runs == 4 and total.epsilon > 6


def test_a_run_does_not_go_on_with_other_noise(tmp_path, monkeypatch):
    """As another version of the accountant may ask for it."""
    config = config_with(**PRIVATE | {"checkpoint_every": 4})
    killed_at(1, config, tmp_path)
    real = accounting.calibrate
    monkeypatch.setattr(accounting, "calibrate", lambda *a, **k: 0.5 * real(*a, **k))
    with refused("privacy plan", tmp_path):
        run(config, tmp_path, say=quiet)


def test_a_run_that_diverges_forgets_its_secret(tmp_path):
    changes = {"server__optimizer": "sgd", "server__rate": 1e38, "rounds": 20}
    with pytest.raises(NotFinite):
        run(config_with(**PRIVATE | changes), tmp_path, say=quiet)
    assert not (tmp_path / "secret").exists()
