"""Comparisons: what is tuned is used, what is done is kept, and the sums are right."""

import csv
import math
import sys

import pytest

from fl_sketch.core import files
from fl_sketch.sweep import comparison, pictures, standings, sweep
from fl_sketch.sweep.comparison import Comparison, Method
from tests.run.configs import config_with

pytestmark = pytest.mark.slow


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


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_method_runs_with_the_best_of_its_grid(done):
    folder, rows, said = done
    tuning = read(folder / "safl_20x" / "tuning" / "sweep.csv")
    assert {row["seed"] for row in tuning} == {"100"} and len(tuning) == 2 * 2
    score = {
        rate: sum(float(r["test_accuracy"]) for r in tuning if r["server.rate"] == rate)
        for rate in ("0.001", "0.03")
    }
    best = max(score, key=score.get)
    assert rows[0]["chosen"] == f"server.rate={best}"
    searched = read(folder / "search.csv")
    assert [row["method"] for row in searched] == ["SAFL, 20x"] * 2 + ["too far"] * 2
    for row in searched[:2]:
        assert float(row["accuracy"]) == pytest.approx(score[row["server.rate"]] / 2)
    assert any("best of 2" in line for line in said)


def test_what_is_reported_are_means_over_seeds_and_the_last_evaluations(done):
    folder, rows, _ = done
    own = read(folder / "fedavg" / "seeds" / "sweep.csv")
    last = [float(row["test_accuracy"]) for row in own if int(row["round"]) > 2]
    assert len(last) == 4  # two seeds, two evaluations
    assert rows[1]["accuracy"] == pytest.approx(sum(last) / 4)
    by_seed = [(last[0] + last[2]) / 2, (last[1] + last[3]) / 2]
    assert standings.half_width(by_seed) == pytest.approx(rows[1]["half_width"])


def test_at_equal_bytes_a_method_is_seen_where_the_cheapest_one_ends(done):
    folder, rows, _ = done
    everything = read(folder / "comparison.csv")
    cheapest = min(rows, key=lambda row: row["bytes_up"])
    assert cheapest["method"] == "SAFL, 20x"
    # FedAvg sends 20 times as much and is over the budget at its first evaluation.
    assert math.isnan(rows[1]["accuracy_at_budget"])
    last = [
        float(r["test_accuracy"])
        for r in everything
        if r["method"] == "SAFL, 20x" and int(r["round"]) > 2
    ]
    assert rows[0]["accuracy_at_budget"] == pytest.approx(sum(last) / 4)


def test_a_method_that_diverges_everywhere_is_said_to(done):
    folder, rows, said = done
    assert rows[2]["diverged"] == 2 and math.isnan(rows[2]["accuracy"])
    assert any("all 2 points of its grid diverged" in line for line in said)
    assert "| too far | diverged |" in (folder / "standings.md").read_text()
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_nothing_but_divergence_is_drawn(done, tmp_path):
    folder, _, _ = done
    lost = [r for r in read(folder / "comparison.csv") if r["method"] == "too far"]
    assert lost
    pictures.draw(lost, tmp_path / "lost.png")
    assert (tmp_path / "lost.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_again_runs_nothing_and_says_the_same(done, monkeypatch):
    folder, rows, _ = done
    # Of that name the package has the function.
    monkeypatch.setattr(sys.modules[sweep.__module__], "run", None)  # would fail
    before = (folder / "standings.csv").read_bytes()
    comparison.run(small(), folder, say=lambda line: None)
    assert (folder / "standings.csv").read_bytes() == before


def test_seeds_apart_are_the_same_and_more_can_be_added(done, tmp_path):
    _, rows, _ = done
    apart = small()._replace(apart=True)
    only, quiet = ["FedAvg", "too far"], lambda line: None
    comparison.run(apart._replace(seeds=(0,)), tmp_path, only=only, say=quiet)
    first = (tmp_path / "fedavg/seeds/0/summary.json").read_text()  # and how long
    found, lost = comparison.run(apart, tmp_path, only=only, say=quiet)
    assert (tmp_path / "fedavg/seeds/0/summary.json").read_text() == first
    for name in ("accuracy", "half_width", "bytes_up", "seeds", "rounds"):
        assert found[name] == pytest.approx(rows[1][name], rel=1e-6)
    assert lost["diverged"] == 2 and math.isnan(lost["accuracy"])


def test_private_methods_are_not_run_apart(tmp_path):
    private = small()._replace(apart=True)
    private.base.privacy.bound, private.base.privacy.noise_multiplier = "clip", 1.0
    with pytest.raises(ValueError, match="without privacy for apart=True, got 'SAFL"):
        comparison.run(private, tmp_path)


def test_a_grid_grows_until_its_best_point_is_inside(tmp_path):
    rates, said = (0.1, 0.3), []
    methods = {"FedAvg": Method({"algorithm": "fedavg"}, {"server.rate": rates})}
    growing = Comparison(small().base, methods, seeds=(0,), widen=1)
    comparison.run(growing, tmp_path, say=said.append)
    searched = read(tmp_path / "search.csv")
    tried = [float(row["server.rate"]) for row in searched]
    assert tried == pytest.approx([0.1, 0.3, 0.9])
    assert any("is at an end of its grid: server.rate=" in line for line in said)


def test_settings_go_to_every_method_and_wrong_ones_are_refused(tmp_path):
    one = small()
    config = comparison.config_of(one, one.methods["FedAvg"], ["rounds=3"])
    assert config.rounds == 3 and config.algorithm == "fedavg"
    with pytest.raises(ValueError, match="--set=round=3. Did you mean 'rounds'"):
        comparison.config_of(one, one.methods["FedAvg"], ["round=3"])
    one_set = ["client.optimizer=sgd(momentum=0.9, nesterov=True)"]
    found = comparison.config_of(one, one.methods["FedAvg"], one_set)
    assert found.client.optimizer == "sgd(momentum=0.9, nesterov=True)"
    with pytest.raises(ValueError, match="and int values, got --set=rounds=3,4"):
        comparison.config_of(one, one.methods["FedAvg"], ["rounds=3,4"])
    with pytest.raises(ValueError, match="Did you mean 'FedAvg'"):
        comparison.run(one, tmp_path, only=["FedAvgg"])


def test_a_method_is_tuned_over_words_too(tmp_path):
    words = {"client.optimizer": ("sgd", "adam(b1=0.8, b2=0.9)")}
    base = small().base
    base.client.rate = 0.01
    one = Comparison(base, {"SAFL": Method({}, words)}, seeds=(0,), tuning_rounds=2)
    (row,) = comparison.run(one, tmp_path, say=lambda line: None)
    assert row["chosen"] in [f"client.optimizer={v}" for v in words["client.optimizer"]]


def test_methods_of_unlike_metrics_are_refused_before_anything_runs(tmp_path):
    one = small()
    one.methods["FedAvg"].keys["model.metrics"] = "f1"
    with pytest.raises(ValueError, match="accuracy of SAFL, 20x, f1 of FedAvg"):
        comparison.run(one, tmp_path, say=lambda line: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("network.graph", "grid:5x5", "FedAvg: config.network: .* of 6 nodes.* of 25"),
        ("sketch.operator", "shrt", "FedAvg: .*Did you mean 'srht'"),
    ],
)
def test_a_wrong_key_of_the_second_method_stops_the_first(key, value, words, tmp_path):
    one = small()
    one.base.cohort.sampling = "everyone"
    one.methods["FedAvg"].keys[key] = value
    with pytest.raises(ValueError, match=words) as caught:
        comparison.run(one, tmp_path, say=lambda line: None)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_method_may_be_tuned_in_all_rounds(done):
    folder, _, _ = done
    short, whole = (
        int(files.read_rows(folder / name / "tuning" / "sweep.csv")[-1]["round"])
        for name in ("safl_20x", "too_far")
    )
    assert short == 4 < whole == small().base.rounds
