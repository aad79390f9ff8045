"""The best point of a sweep: which it is, and that it is there and goes on."""

import csv
import json

import pytest

from fl_sketch.run import run as train_run
from fl_sketch.sweep import best, grid, ranking
from fl_sketch.sweep.sweep import sweep
from tests.sweep.test_sweep import config_of, quiet

pytestmark = pytest.mark.slow


def test_a_kill_before_the_best_point_is_kept_lets_no_other_be_called_so(
    tmp_path, monkeypatch
):
    config, over = config_of(rounds=2), ["client.steps=1,20", "compute.devices=1"]
    plain, calls = best.keep, []

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        plain(*arguments)

    monkeypatch.setattr(best, "keep", killed)
    with pytest.raises(KeyboardInterrupt):
        sweep(config, over, tmp_path, say=quiet)
    found = sweep(config, over, tmp_path, say=quiet)
    kept = json.loads((tmp_path / "best/config.json").read_text())
    assert kept["client"]["steps"] == found["best"]["client.steps"]


def test_a_point_may_be_named_by_words_and_by_yes_or_no():
    over = ["client.optimizer=sgd,adam(b1=0.8, b2=0.9)", "sketch.stored=true,false"]
    axes = grid.read_axes(config_of(), over)
    assert [len(axis.values) for axis in axes] == [2, 2]
    row = {"point": "0", "round": "2", "train_loss": "1", "test_loss": "1"}
    row |= {"test_accuracy": "0.5", "diverged": "", "bytes_up_total": "1"}
    row |= {"bytes_down_total": "1", "client.optimizer": "sgd"}
    (first,) = ranking.ranked([row | {"sketch.stored": "False"}], axes)
    assert first["sketch.stored"] is False


def test_points_are_chosen_by_one_part_of_the_data_alone():
    axes = grid.read_axes(config_of(), ["client.rate=0.1,0.2"])
    row = {"round": "2", "train_loss": "1", "diverged": ""}
    row |= {"bytes_up_total": "1", "bytes_down_total": "1", "test_accuracy": "0.5"}
    rows = [
        row | {"point": "0", "client.rate": "0.1", "validation_accuracy": "0.5",
               "validation_loss": "0.3", "test_loss": "9"},
        row | {"point": "1", "client.rate": "0.2", "validation_accuracy": "0.5",
               "validation_loss": "0.4", "test_loss": "1"},
    ]  # fmt: skip
    assert [one["point"] for one in ranking.ranked(rows, axes)] == [0, 1]


def test_the_best_point_of_clients_who_may_not_answer_is_a_run(tmp_path):
    config = config_of(rounds=2, eval_every=1)
    sweep(config, ["cohort.dropout=0.0,0.5"], tmp_path / "sweep", say=quiet)
    kept = json.loads((tmp_path / "sweep/best/config.json").read_text())
    config.cohort.dropout, config.rounds = kept["cohort"]["dropout"], 4
    train_run(config, tmp_path / "sweep/best", extend=True, say=quiet)
    train_run(config, tmp_path / "one", say=quiet)
    one, other = (
        list(csv.DictReader((tmp_path / at / "metrics.csv").read_text().splitlines()))
        for at in ("sweep/best", "one")
    )
    assert list(one[0]) == list(other[0])
    for mine, theirs in zip(one, other, strict=True):
        assert mine["test_loss"] == theirs["test_loss"]


def test_tables_say_by_what_points_were_chosen():
    axes = grid.read_axes(config_of(), ["client.rate=0.1,0.2", "seed=0,1"])
    rows = [
        {"point": n, "client.rate": rate, "seed": seed, "round": 2, "train_loss": 1.0,
         "validation_rmse": own, "validation_loss": 1.0, "test_rmse": 0.25630,
         "test_loss": 1.0, "diverged": "", "bytes_up_total": 1, "bytes_down_total": 1}
        for n, (rate, seed, own) in enumerate(
            [(0.1, 0, 0.5), (0.1, 1, 0.5), (0.2, 0, 0.2), (0.2, 1, 0.3)])
    ]  # fmt: skip
    last = ranking.ranked(rows, axes)
    head, *_, means, best_, other = ranking.table(last, axes)
    assert "validation rmse" in head and "validation rmse" in means
    assert best_.split()[:2] == ["0.2", "0.2500"] and other.split()[1] == "0.5000"
    pasted = ranking.markdown(last, axes)
    assert pasted[0].startswith("| client.rate | validation rmse | test rmse")
    assert pasted[2] == "| 0.2 | 0.2500 | 0.2563 +- 0.0000 |"
