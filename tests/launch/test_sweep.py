"""python -m launch.sweep: a plan, a table, a folder, and one line for what is wrong."""

import csv
import json

import pytest

from tests.launch.test_release import refused
from tests.launching import launch

pytestmark = pytest.mark.slow


def sweep(workdir, *arguments):
    return launch(
        "launch.sweep",
        "--config=configs/default.py",
        f"--workdir={workdir}",
        "--config.model.name=logistic",
        "--config.rounds=4",
        "--config.eval_every=2",
        *arguments,
    )


def test_a_sweep_prints_its_plan_and_its_table_and_leaves_its_files(tmp_path):
    done = sweep(tmp_path / "new", "--over=server.rate=0.0001,0.01", "--over=seed=0,1")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("points: 4 = 2 server.rate x 2 seed; programs: 1")
    assert "650 parameters" in lines[1] and "4 points of" in lines[1]
    assert lines[3].startswith("  program 1 of 1, round 4: test accuracy 0.")
    assert lines[4].split()[:2] == ["server.rate", "seed"]
    points = [line.split() for line in lines[5:9]]
    assert sorted(point[:2] for point in points) == [
        [rate, seed] for rate in ("0.0001", "0.01") for seed in "01"
    ]
    accuracies = [float(point[2]) for point in points]
    assert accuracies == sorted(accuracies, reverse=True)
    assert lines[9].endswith("server.rate test accuracy, +- deviation over seeds")
    best = tmp_path / "new/best"
    assert lines[12].endswith(f"launch.train --workdir={best} --extend=ROUNDS")
    assert lines[13] == f"results in {tmp_path / 'new'}"

    folder = tmp_path / "new"
    rows = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    assert [(row["point"], row["round"]) for row in rows] == [
        (point, number) for number in "24" for point in "0123"
    ]
    assert rows[-1]["bytes_up_total"] == str(4 * 10 * 32 * 4)
    summary = json.loads((folder / "sweep.json").read_text())
    assert summary["over"] == {"server.rate": [0.0001, 0.01], "seed": [0, 1]}
    assert summary["best"]["server.rate"] == float(points[0][0])
    assert summary["seconds"] > summary["compile_seconds"] > 0
    assert json.loads((folder / "config.json").read_text())["rounds"] == 4
    assert (folder / "heatmap.png").read_bytes()[1:4] == b"PNG"
    head, _, first, *_ = (folder / "sweep.md").read_text().splitlines()
    assert head == "| server.rate | test accuracy, +- deviation over seeds |"
    assert " +- " in first

    said = refused(folder, tmp_path / "out")
    assert "the folder of one run, got a sweep's" in said


def test_what_is_wrong_is_said_before_anything_is_compiled(tmp_path):
    done = sweep(tmp_path / "run", "--over=client.rate=0.1,-1")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("error: Expected client.rate > 0")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
