"""One budget, asked everywhere: runs, sweeps, comparisons and Python stop alike."""

import csv
import json
import shutil

import numpy as np
import pytest
from fl_sketch.run.loop import Watch

from fl_sketch.config import guarantee
from fl_sketch.privacy import accounting, composition
from fl_sketch.privacy.composition import Trials
from fl_sketch.run import begin, build, run, train
from fl_sketch.sweep import comparison, sweep
from fl_sketch.sweep.comparison import Comparison, Method
from fl_sketch.workdir import checkpoint, odometer
from tests.run.configs import config_with

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
WATCHED = PRIVATE | {"privacy__watch": True}
GIVEN = PRIVATE | {"privacy__noise_multiplier": 1.2}  # whose budget ends early
SIMULATED = {"privacy__randomness": "seed"}
OVER = ["privacy.threshold=1,2", "seed=0,1"]


def quiet(line):
    del line


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def budget():
    plan = accounting.Plan(12, 50, 200)
    return accounting.steps_within(plan, 1.2, epsilon=4.0, delta=1e-5)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    return folder, sweep(config_with(**GIVEN), OVER, folder, say=quiet)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, run(config_with(**GIVEN), folder, say=quiet)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """A sweep with a secret that follows from the seed, and the run of its last point.

    Returns the folders of both, the rows of this point, and the summary of the run.
    """
    config = config_with(**WATCHED | SIMULATED)
    sweeping, alone = map(tmp_path_factory.mktemp, ("sweep", "run"))
    sweep(config, ["privacy.threshold=2,1", "seed=0,1"], sweeping, say=quiet)
    rows = [
        row
        for row in read(sweeping / "sweep.csv")
        if (row["privacy.threshold"], row["seed"]) == ("1.0", "1")
    ]
    config.seed = 1
    return sweeping, alone, rows, run(config, alone, say=quiet)


def test_a_run_a_sweep_and_python_end_with_the_same_round(swept, ran):
    assert 5 < budget() < 12
    config, summary = config_with(**GIVEN), ran[1]
    assert summary["rounds"] == budget()
    assert {int(row["round"]) for row in read(swept[0] / "sweep.csv")} == {5, budget()}
    built, seen = build(config), []
    compiled = built.compile()
    for asked in (None, 12, 10**6):
        progress = train(
            built,
            compiled,
            begin(built, config.eval_every),
            checkpoint_every=100,
            rounds=asked,
            watch=Watch(row=seen.append),
        )
        assert int(progress.state.server.round) == budget()
    assert seen[-1]["epsilon"] == summary["epsilon"] <= 4.0


def test_epsilon_stands_in_every_table_of_a_sweep(swept):
    folder, found = swept
    plan = accounting.Plan(budget(), 50, 200)
    spent = accounting.epsilon(plan, 1.2, delta=1e-5)
    for row in read(folder / "sweep.csv"):
        if int(row["round"]) == budget():
            assert float(row["epsilon"]) == pytest.approx(spent, rel=1e-4)
        assert float(row["delta"]) == 1e-5 and row["randomness"] == "system"
        assert "simulator_only_train_loss" in row and "train_loss" not in row
    best = found["best"]
    assert best["epsilon"] == pytest.approx(spent, rel=1e-4)
    assert (best["delta"], best["randomness"]) == (1e-5, "system")
    all_four = composition.together([(plan, 1.2)] * 4, delta=1e-5)
    assert found["epsilon_of_all"] == pytest.approx(all_four, rel=1e-3)
    assert found["runs_of_all"] == 4
    table = (folder / "sweep.md").read_text()
    assert f"all 4 runs together give away epsilon {all_four:.3g}" in table


def test_a_sweep_whose_odometer_is_gone_says_nothing_of_its_privacy(tmp_path, swept):
    folder = shutil.copytree(swept[0], tmp_path / "sweep")
    (folder / odometer.FILE).unlink()
    with pytest.raises(
        ValueError, match=r"odometer\.json .* counts what its rows gave"
    ):
        sweep(config_with(**GIVEN), OVER, folder, say=quiet)


def test_what_clients_measured_stands_in_a_sweep(simulated):
    _, folder, swept, _ = simulated
    alone = read(folder / "metrics.csv")
    for name in ("noised_train_loss", "noised_train_accuracy"):
        for one, other in zip(swept, alone, strict=True):
            assert float(one[name]) == pytest.approx(float(other[name]), rel=1e-4)


def test_a_sweep_in_a_simulation_is_a_run_with_the_same_seed(simulated):
    folder, _, rows, summary = simulated
    row = rows[-1]
    assert float(row["test_loss"]) == pytest.approx(summary["test_loss"], rel=1e-4)
    assert row["randomness"] == summary["randomness"] == "simulated"
    assert "simulated" in (folder / "sweep.md").read_text()


def small(**options):
    base = config_with(**PRIVATE | SIMULATED | {"rounds": 4, "eval_every": 2})
    methods = {"SAFL": Method({}, {"server.rate": (0.01, 0.03)})}
    return Comparison(base, methods, seeds=(0, 1), tuning_rounds=2, **options)


def test_a_search_has_the_noise_of_the_run_and_is_counted(tmp_path):
    said = []
    (row,) = comparison.run(small(), tmp_path, say=said.append)
    searched, reported = (
        odometer.read(tmp_path / "safl" / part) for part in ("tuning", "seeds")
    )
    assert len(searched) == len(reported) == 2
    assert {one.plan.steps for one in searched} == {2}
    assert {one.plan.steps for one in reported} == {4}
    (z,) = {one.noise_multiplier for one in (*searched, *reported)}
    plan = accounting.Plan(4, 50, 200)
    assert z == pytest.approx(accounting.calibrate(plan, epsilon=4.0, delta=1e-5), 1e-4)
    everything = odometer.read(tmp_path)
    assert len(everything) == 4
    assert row["epsilon"] == pytest.approx(4.0, rel=1e-3) and row["delta"] == "1e-05"
    (stands,) = read(tmp_path / "standings.csv")
    assert float(stands["epsilon"]) == row["epsilon"]
    for point in read(tmp_path / "search.csv"):
        assert 1 < float(point["epsilon"]) < 4 and point["randomness"] == "simulated"
    table = (tmp_path / "standings.md").read_text()
    total = odometer.total(everything)
    said_so = f"all 4 runs together give away epsilon {total.epsilon:.4g}"
    assert total.epsilon > 6 and said_so in table
    assert "epsilon of a run" in table and "(simulated)" in table
    assert any("all 4 runs together" in line for line in said)


def test_a_search_on_public_data_is_not_counted(tmp_path):
    comparison.run(small(tuning_keys={"data.public": True}), tmp_path, say=quiet)
    total = odometer.total(odometer.read(tmp_path))
    assert (total.runs, total.public) == (2, 2)
    assert "2 more on public data" in (tmp_path / "standings.md").read_text()


def test_a_private_selection_costs_a_few_runs_and_hides_the_others(tmp_path):
    trials = Trials(2.0, 1.0)
    (row,) = comparison.run(small(), tmp_path, trials=trials, say=quiet)
    (entry,) = odometer.read(tmp_path)
    plan = entry.plan
    assert entry.trials == (2.0, 1.0) and plan.steps == 4
    whole = odometer.total([entry]).epsilon
    expected = composition.best_of_a_random_number(
        plan, entry.noise_multiplier, trials, delta=1e-5
    )
    assert whole == pytest.approx(expected) and whole > 4.0
    assert row["seeds"] == 1 and not (tmp_path / "search.csv").exists()
    points = json.loads(
        (tmp_path / "safl" / "simulator_only_trials" / "points.json").read_text()
    )
    before = row["accuracy"]
    (again,) = comparison.run(small(), tmp_path, trials=trials, say=quiet)
    assert again["accuracy"] == before and len(points["points"]) >= 1
    with pytest.raises(ValueError, match="mean=2.0 and shape=1.0, as drawn"):
        comparison.run(small(), tmp_path, trials=Trials(1.1), say=quiet)
    assert row["epsilon"] == pytest.approx(expected)
    (stands,) = read(tmp_path / "standings.csv")
    assert float(stands["epsilon"]) == pytest.approx(expected)


def test_a_comparison_leaves_the_count_of_a_run_alone(ran):
    folder, _ = ran
    before = (folder / odometer.FILE).read_bytes()
    with pytest.raises(ValueError, match=r"odometer\.json counts a run"):
        comparison.run(small(), folder, say=quiet)
    assert (folder / odometer.FILE).read_bytes() == before


def test_trials_that_do_not_cost_the_same_are_refused_before_any(tmp_path):
    one = small()
    unlike = one._replace(
        methods={"SAFL": Method({}, {"cohort.size": (20, 100), "server.rate": (0.1,)})}
    )
    words = "cost the same .* values of cohort.size"
    with pytest.raises(ValueError, match=words):
        comparison.run(unlike, tmp_path, trials=Trials(2.0), say=quiet)
    assert not any(tmp_path.iterdir())


def test_methods_that_protect_unlike_units_are_refused_before_any(tmp_path):
    one = small()
    examples = {"privacy.unit": "example", "algorithm": "private_sketching"}
    both = one._replace(methods={**one.methods, "examples": Method(examples)})
    with pytest.raises(ValueError, match="unit=client and unit=example"):
        comparison.run(both, tmp_path, say=quiet)
    assert not any(tmp_path.iterdir())


def test_a_total_is_for_the_relation_that_all_runs_keep():
    promise_ = build(config_with(**PRIVATE)).guarantee
    one = odometer.entry("one", promise_, 3)
    other = one._replace(
        name="other",
        plan=one.plan._replace(relation="replace_one", sampling="everyone"),
    )
    assert odometer.total([one]).relation == "add_remove"
    total = odometer.total([one, other])
    assert total.relation == "replace_one"
    assert "(replace_one)" in odometer.said(total)[0]
    chosen = one._replace(trials=(2.0, 1.0))
    whole = one.plan._replace(sampling="everyone", steps=3)
    added = one._replace(plan=whole)
    chosen_so = other._replace(trials=(2.0, 1.0))
    replaced = added._replace(plan=whole._replace(relation="replace_one"))
    both = odometer.total([added, chosen_so]).epsilon
    assert both == pytest.approx(odometer.total([replaced, chosen_so]).epsilon)
    # No accountant has Renyi divergences of Poisson samples for this relation.
    assert odometer.total([chosen, other]).epsilon == np.inf


@pytest.mark.parametrize(
    "trials", [Trials(1.0), Trials(5.0, -1.0), Trials(np.inf), Trials(2.0, np.inf)]
)
def test_numbers_of_trials_that_are_no_distribution_are_refused(trials):
    with pytest.raises(ValueError, match="Expected"):
        composition.require(trials)


def test_noise_may_be_made_for_more_rounds_than_are_run():
    longer = config_with(**PRIVATE | {"rounds": 3, "privacy__planned_rounds": 12})
    found = build(longer)
    whole = build(config_with(**PRIVATE))
    assert found.guarantee.noise_multiplier == whole.guarantee.noise_multiplier
    assert (found.rounds, whole.rounds) == (3, 12)
    assert found.guarantee.epsilon(3) < 4.0
    shorter = config_with(**PRIVATE | {"privacy__planned_rounds": 5})
    assert build(shorter).rounds == 5


def test_the_noise_of_a_run_is_that_with_which_it_began(tmp_path, monkeypatch):
    changes = WATCHED | {"checkpoint_every": 4}
    config = config_with(**changes)

    class Enough(Exception):
        pass

    def stopping(experiment_, compiled, progress, *, watch, **options):
        def save(done, progress):
            watch.save(done, progress)
            raise Enough

        once = watch._replace(save=save)
        return train(experiment_, compiled, progress, watch=once, **options)

    train = run.__globals__["train"]
    with monkeypatch.context() as patched, pytest.raises(Enough):
        patched.setitem(run.__globals__, "train", stopping)
        run(config, tmp_path, say=quiet)
    began = checkpoint.peek(tmp_path / "checkpoints", "noise_multiplier")
    assert began == build(config).guarantee.noise_multiplier

    # Another version of the accountant asks for other noise; the run keeps its own.
    other = accounting.calibrate
    monkeypatch.setattr(
        guarantee.accounting, "calibrate", lambda *a, **k: 0.5 * other(*a, **k)
    )
    assert build(config).guarantee.noise_multiplier == pytest.approx(began / 2)
    summary = run(config, tmp_path, say=quiet)
    assert summary["noise_multiplier"] == began and summary["rounds"] == 12
    assert summary["epsilon"] <= 4.0
