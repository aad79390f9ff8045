"""One budget, asked everywhere: runs, sweeps, comparisons and Python stop alike."""

import json
import shutil

import pytest

from fl_sketch.engine.loop import NotFinite
from fl_sketch.privacy import accounting, composition
from fl_sketch.privacy.guarantee import rounded_up
from fl_sketch.run import display, run, task_of
from fl_sketch.sweep import comparison, sweep
from fl_sketch.sweep.comparison import Comparison, Method
from fl_sketch.workdir import odometer
from tests.run.configs import (
    config_with,
    killed_at,
    played,
    quiet,
    refused,
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
    task = task_of(config_with(**GIVEN))
    end = played(task)
    assert task.last == end.progress.done == budget()
    assert end.rows[-1]["epsilon"] == summary["epsilon"] <= 4.0


def test_epsilon_stands_in_every_table_of_a_sweep(swept):
    folder, summary = swept
    plan = accounting.Plan(budget(), 50, 200)
    spent = accounting.epsilon(plan, 1.2, delta=1e-5)
    for row in table_in(folder, "sweep.csv"):
        if int(row["round"]) == budget():
            assert float(row["epsilon"]) == pytest.approx(spent, rel=1e-4)
        assert float(row["delta"]) == 1e-5 and row["randomness"] == "system"
        assert "train_loss" not in row
    best = summary["best"]
    assert best["epsilon"] == pytest.approx(spent, rel=1e-4)
    assert (best["delta"], best["randomness"]) == (1e-5, "system")
    all_four = composition.together([(plan, 1.2)] * 4, delta=1e-5)
    assert summary["epsilon_of_all"] == pytest.approx(all_four, rel=1e-3)
    assert summary["runs_of_all"] == 4  # of two seeds, with one partition
    shown = rounded_up(summary["epsilon_of_all"])
    assert f"epsilon = {shown}" in (folder / "sweep.md").read_text()


def test_a_sweep_whose_odometer_is_gone_says_nothing_of_its_privacy(tmp_path, swept):
    folder = shutil.copytree(swept[0], tmp_path / "sweep")
    (folder / odometer.FILE).unlink()
    with refused(odometer.FILE, folder):
        sweep(config_with(**GIVEN), OVER, folder, say=quiet)


def test_a_sweep_in_a_simulation_is_a_run_with_the_same_seed(tmp_path):
    config = config_with(**PRIVATE | SIMULATED)
    over = ["privacy.threshold=2,1", "seed=0,1"]
    sweep(config, over, tmp_path / "sweep", say=quiet)
    own = ("1.0", "1")
    rows = [
        row
        for row in table_in(tmp_path / "sweep", "sweep.csv")
        if (row["privacy.threshold"], row["seed"]) == own
    ]
    config.seed = 1
    summary = run(config, tmp_path / "run", say=quiet)
    for ours, theirs in zip(rows, table_in(tmp_path / "run"), strict=True):
        ours, theirs = float(ours["test_loss"]), float(theirs["test_loss"])
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert rows[-1]["randomness"] == summary["randomness"] == "simulated"
    assert "simulated" in (tmp_path / "sweep/sweep.md").read_text()


def small(**options):
    base = config_with(**PRIVATE | SIMULATED | {"rounds": 4, "eval_every": 2})
    methods = {"SAFL": Method({}, {"server.rate": (0.01, 0.03)})}
    return Comparison(base, methods, seeds=(0, 1), tuning_rounds=2, **options)


def test_a_search_has_the_noise_of_the_run_and_is_counted(tmp_path):
    said = []
    (row,) = comparison.run(small(), tmp_path, say=said.append)
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
    assert float(row["delta"]) == 1e-5
    (stands,) = table_in(tmp_path, "simulator/standings.csv")
    assert float(stands["epsilon"]) == row["epsilon"]
    for point in table_in(tmp_path, "search.csv"):
        assert 1 < float(point["epsilon"]) < 4 and point["randomness"] == "simulated"
    text = (tmp_path / "standings.md").read_text()
    total = odometer.total(entries)
    (line,) = odometer.lines(entries)
    assert total.runs == 4 and total.epsilon > 6 and rounded_up(total.epsilon) in line
    assert line in text and "(simulated)" in text
    assert any(line in one for one in said)


def test_a_search_on_public_data_is_not_counted(tmp_path):
    comparison.run(small(tuning_keys={"data.public": True}), tmp_path, say=quiet)
    total = odometer.total(odometer.read(tmp_path))
    assert (total.runs, total.public) == (2, 2)


def test_a_comparison_leaves_the_count_of_a_run_alone(ran):
    folder, _ = ran
    before = (folder / odometer.FILE).read_bytes()
    with refused(folder, odometer.FILE):
        comparison.run(small(), folder, say=quiet)
    assert (folder / odometer.FILE).read_bytes() == before


def test_methods_that_have_no_total_are_refused_before_any(tmp_path):
    one = small()
    examples = Method({"privacy.unit": "example", "algorithm": "private_sketching"})
    with refused("unit=client", "unit=example"):
        both = one._replace(methods={**one.methods, "examples": examples})
        comparison.run(both, tmp_path, say=quiet)
    assert not any(tmp_path.iterdir())


def test_a_total_is_for_the_relation_that_all_runs_keep():
    one = task_of(config_with(**PRIVATE)).known.guarantee.after(3)
    plan = one.plan._replace(relation="replace_one", sampling="everyone")
    other = one._replace(plan=plan)

    def total(*entries):
        return odometer.total({str(n): entry for n, entry in enumerate(entries)})

    assert total(one).relation == "add_remove"
    assert total(one, other).relation == "replace_one"
    # A total at the larger delta is less than at the smaller one, and holds for both.
    loose = one._replace(delta=1e-3)
    assert total(one, loose).delta == 1e-3
    pair = [(one.plan, one.noise_multiplier)] * 2
    expected = composition.together(pair, delta=1e-3)
    assert total(one, loose).epsilon == pytest.approx(expected)


def test_runs_that_deal_their_examples_in_other_ways_have_no_total():
    def entry(**more):
        return task_of(config_with(**PRIVATE | more)).known.guarantee.after(3)

    one, seed, dealt = entry(), entry(seed=1), entry(data__partition_seed=1)
    assert one.partition == seed.partition != dealt.partition
    assert json.loads(one.partition)["name"] == "digits"
    assert odometer.total({"one": one, "two": seed}).runs == 2
    both = {"one": one, "two": dealt}
    with pytest.raises(odometer.NoTotal):
        odometer.total(both)
    (line,) = odometer.lines(both)
    assert "no common epsilon" in line and "=" not in line
    facts = odometer.facts(both)
    assert facts["epsilon_of_all"] is None and facts["no_total"]
    public = dealt._replace(public=True)
    assert odometer.total({"one": one, "two": public}).public == 1


def test_the_noise_of_a_run_is_that_with_which_it_began(tmp_path, monkeypatch):
    config = config_with(**PRIVATE | {"checkpoint_every": 4})
    killed_at(1, config, tmp_path)
    began = odometer.read(tmp_path)["run"].noise_multiplier
    assert began == task_of(config).known.guarantee.noise_multiplier

    # Another version of the accountant asks for other noise; the run keeps its own.
    real = accounting.calibrate
    monkeypatch.setattr(accounting, "calibrate", lambda *a, **k: 0.5 * real(*a, **k))
    now = task_of(config).known.guarantee.noise_multiplier
    assert now == pytest.approx(began / 2)
    summary = run(config, tmp_path, say=quiet)
    assert summary["noise_multiplier"] == began and summary["rounds"] == 12
    assert summary["epsilon"] <= 4.0


def test_a_run_that_diverges_forgets_its_secret(tmp_path):
    changes = {"server__optimizer": "sgd", "server__rate": 1e38, "rounds": 20}
    with pytest.raises(NotFinite):
        run(config_with(**PRIVATE | changes), tmp_path, say=quiet)
    assert not (tmp_path / "secret").exists()


def test_what_is_printed_of_epsilon_is_never_less(ran):
    summary = ran[1] | {"epsilon": 8.00004}
    (line,) = [one for one in display.result(summary, "x") if "epsilon" in one]
    assert "epsilon = 8.001 " in line
    row = summary | {"round": 1, "epsilon": 8.00004}
    assert display.row(row).split()[-1] == "8.0001"
    task = task_of(config_with(**GIVEN))
    spent = task.known.guarantee.epsilon(task.last)
    text = "".join(display.plan(config_with(**GIVEN), task))
    assert f"epsilon = {rounded_up(spent)} at" in text
