"""Comparisons: what is tuned is used, what is done is kept, and the sums are right."""

import math
import sys

import pytest

from fl_sketch.core import files
from fl_sketch.sweep import comparison, sweep
from fl_sketch.sweep.comparison import Comparison, Method
from fl_sketch.workdir import odometer
from tests.run.configs import config_with

pytestmark = pytest.mark.slow
read = files.read_rows


def quiet(line):
    del line


def small():
    base = config_with(rounds=6, eval_every=2, data__clients=6, cohort__size=3)
    base.compute.devices = 1
    methods = {
        "SAFL, 20x": Method({}, {"server.rate": (0.001, 0.03)}),
        "FedAvg": Method({"algorithm": "fedavg", "server.rate": 1.0}),
        "too far": Method(
            {"algorithm": "fedopt", "server.optimizer": "sgd"},
            {"client.rate": (1e38, 3e38)},
            whole=True,
        ),
    }
    return Comparison(base, methods, seeds=(0, 1), tuning_rounds=4, last=2)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder, said = tmp_path_factory.mktemp("comparison"), []
    rows = comparison.run(small(), folder, say=said.append)
    return folder, rows, said


def accuracies(path, method, after):
    """Returns the accuracies of a method after a round."""
    rows = (row for row in read(path) if row.get("method", method) == method)
    return [float(row["test_accuracy"]) for row in rows if int(row["round"]) > after]


def test_a_method_runs_with_the_best_of_its_grid(done):
    folder, rows, said = done
    tuned = read(folder / "safl_20x/tuning/sweep.csv")
    assert {row["seed"] for row in tuned} == {"100"} and len(tuned) == 2 * 2
    scores = {}
    for row in tuned:
        scores.setdefault(row["server.rate"], []).append(float(row["test_accuracy"]))
    scores = {rate: sum(values) / 2 for rate, values in scores.items()}
    assert rows[0]["chosen"] == f"server.rate={max(scores, key=scores.get)}"
    searched = read(folder / "search.csv")
    assert [row["method"] for row in searched] == ["SAFL, 20x"] * 2 + ["too far"] * 2
    for row in searched[:2]:
        assert float(row["accuracy"]) == pytest.approx(scores[row["server.rate"]])
    assert any("best of 2" in line for line in said)
    whole = read(folder / "too_far/tuning/sweep.csv")
    assert (tuned[-1]["round"], whole[-1]["round"]) == ("4", "6")


def test_standings_are_of_the_last_evaluations_also_at_equal_bytes(done):
    folder, rows, said = done
    last = accuracies(folder / "fedavg/seeds/sweep.csv", "FedAvg", 2)
    assert len(last) == 4  # two seeds, two evaluations
    assert rows[1]["accuracy"] == pytest.approx(sum(last) / 4)
    width = 12.7062 * abs(last[0] + last[2] - last[1] - last[3]) / 4  # Student's
    assert rows[1]["half_width"] == pytest.approx(width, rel=1e-4)
    assert min(rows, key=lambda row: row["bytes_up"])["method"] == "SAFL, 20x"
    last = accuracies(folder / "comparison.csv", "SAFL, 20x", 2)
    assert rows[0]["accuracy_at_budget"] == pytest.approx(sum(last) / 4)
    # FedAvg sends 20 times as much and is over the budget at its first evaluation.
    assert math.isnan(rows[1]["accuracy_at_budget"])
    assert rows[2]["diverged"] == 2 and math.isnan(rows[2]["accuracy"])
    assert any("all 2 points of the grid diverged" in line for line in said)
    assert "| too far | diverged |" in (folder / "standings.md").read_text()
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_again_runs_nothing_and_says_the_same(done, monkeypatch):
    folder, _, _ = done
    # Of that name the package has the function.
    monkeypatch.setattr(sys.modules[sweep.__module__], "_run_rest", None)  # would fail
    before = (folder / "standings.csv").read_bytes()
    comparison.run(small(), folder, say=quiet)
    assert (folder / "standings.csv").read_bytes() == before

    def refused(_):
        raise odometer.NoTotal("the runs deal examples to clients differently")

    monkeypatch.setattr(odometer, "total", refused)
    said = []
    comparison.run(small(), folder, say=said.append)
    line = "privacy: these runs have no common epsilon. "
    line += "the runs deal examples to clients differently"
    assert (folder / "standings.md").read_text().endswith(f"\n\n{line}.\n")
    assert said[-2] == line


def test_seeds_apart_are_the_same_and_more_can_be_added(done, tmp_path):
    _, rows, _ = done
    apart, only = small()._replace(apart=True), ["FedAvg", "too far"]
    comparison.run(apart._replace(seeds=(0,)), tmp_path, only=only, say=quiet)
    first = (tmp_path / "fedavg/seeds/0/summary.json").read_text()  # and how long
    found, lost = comparison.run(apart, tmp_path, only=only, say=quiet)
    assert (tmp_path / "fedavg/seeds/0/summary.json").read_text() == first
    for name in ("accuracy", "half_width", "bytes_up", "seeds", "rounds"):
        assert found[name] == pytest.approx(rows[1][name], rel=1e-6)
    assert lost["diverged"] == 2 and math.isnan(lost["accuracy"])


def test_settings_go_to_every_method_and_come_last():
    one = small()
    fedavg = one.methods["FedAvg"]
    optimizer = "sgd(momentum=0.9, nesterov=True)"  # a comma of a value
    settings = ["rounds=3", "server.rate=0.5", f"client.optimizer={optimizer}"]
    config = comparison.config_of(one, fedavg, settings)
    assert (config.rounds, config.algorithm, config.server.rate) == (3, "fedavg", 0.5)
    assert config.client.optimizer == optimizer
    for setting in ("round=3", "rounds=3,4"):
        with pytest.raises(ValueError, match=f"--set={setting}"):
            comparison.config_of(one, fedavg, [setting])


PRIVATE = {"privacy.bound": "clip", "privacy.noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("keys", "options", "words"),
    [
        (
            {"model.metrics": "perplexity"},
            {},
            "accuracy of SAFL, 20x, perplexity of FedAvg",
        ),
        ({"sketch.operator": "shrt"}, {}, "FedAvg: .*'srht'"),
        ({}, {"only": ["FedAvgg"]}, "'FedAvg'"),
        (PRIVATE, {}, "apart=True, got 'FedAvg'"),
    ],
)
def test_what_is_wrong_with_the_second_method_stops_the_first(
    keys, options, words, tmp_path
):
    one = small()
    one.base.cohort.sampling = "everyone"
    one.methods["FedAvg"].keys.update(keys)
    one = one._replace(apart=keys is PRIVATE)
    with pytest.raises(ValueError, match=words) as caught:
        comparison.run(one, tmp_path, say=quiet, **options)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_methods_of_one_folder_are_refused_before_the_first_trains(tmp_path):
    one = small()
    one.methods["safl 20X"] = one.methods["SAFL, 20x"]
    with pytest.raises(ValueError, match="different folders, got .*'safl 20X'"):
        comparison.run(one, tmp_path, say=quiet)
    assert not list(tmp_path.iterdir())
