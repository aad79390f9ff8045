"""python -m launch.train: a table, a folder, and one line for what is wrong."""

import csv
import json

import pytest

from tests.launch.test_launch import launch


def train(workdir, *overrides, config="configs/default.py"):
    return launch(
        "launch.train", f"--config={config}", f"--workdir={workdir}", *overrides
    )


SHORT = ("--config.rounds=6", "--config.eval_every=3", "--config.model.name=logistic")


def test_a_run_leaves_its_config_its_rows_and_its_summary(tmp_path):
    done = train(tmp_path / "run", *SHORT)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("safl: 650 parameters, 32 numbers a message, 20 clients")
    assert [line.split()[0] for line in lines[2:4]] == ["3", "6"]

    folder = tmp_path / "run"
    config = json.loads((folder / "config.json").read_text())
    assert config["rounds"] == 6 and config["model"]["name"] == "logistic"
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [row["round"] for row in rows] == ["3", "6"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == 6
    assert summary["d"] == 650 and summary["sketch_size"] == 32
    assert summary["test_accuracy"] == float(rows[-1]["test_accuracy"])
    assert summary["bytes_up_total"] == 6 * 10 * 32 * 4
    assert summary["versions"]["jax"]

    again = train(folder, *SHORT)
    assert again.returncode == 2
    assert again.stderr.startswith("error: Expected a fresh workdir")


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        (("--config.client.rate=-1",), 2, "error: Expected client.rate > 0"),
        (("--config.cohort.size=99",), 2, "size=99"),
        (("--config.data.name=mnist", "--data_dir=/no/such"), 2, "/no/such"),
        (("--workdir=/proc/none",), 2, "workdir=/proc/none"),
        (("--config.rouns=3",), 1, 'Did you mean "rounds"'),
        (("--config.rounds=many",), 1, "many"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_compiled(
    tmp_path, overrides, code, words
):
    done = train(tmp_path / "run", *overrides)
    assert done.returncode == code
    assert words in done.stderr
    if code == 2:
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "run" / "metrics.csv").exists()
