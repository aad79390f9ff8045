"""python -m launch.sweep: a plan, a table, a folder, and one line for what is wrong."""

import json

import pytest

from fl_sketch.core import files
from tests.launch.test_release import refused
from tests.launching import launch

pytestmark = pytest.mark.slow


def sweep(workdir, *arguments):
    keys = {"model.name": "logistic", "rounds": 4, "eval_every": 2}
    flags = (f"--config.{key}={value}" for key, value in keys.items())
    start = ("launch.sweep", "--config=configs/default.py", f"--workdir={workdir}")
    return launch(*start, *flags, *arguments)


def test_a_sweep_prints_its_plan_and_its_table_and_leaves_its_files(tmp_path):
    folder = tmp_path / "new"
    done = sweep(folder, "--over=server.rate=0.0001,0.01", "--over=seed=0,1")
    assert done.returncode == 0 and not done.stderr, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        "points: 4 = 2 server.rate x 2 seed; compiled programs: 1"
    )
    assert "650 parameters" in lines[1] and "4 points of" in lines[1]
    assert lines[3].startswith("  program 1 of 1, round 4: test accuracy 0.")
    assert lines[4].split()[:2] == ["server.rate", "seed"]
    points = [line.split() for line in lines[5:9]]
    accuracies = [float(point[2]) for point in points]
    assert accuracies == sorted(accuracies, reverse=True)
    assert lines[9].endswith("server.rate test accuracy (%), +- deviation over seeds")
    assert lines[12] == f"results in {folder}"

    rows = files.read_rows(folder / "sweep.csv")
    assert [row["point"] + row["round"] for row in rows] == [
        point + number for number in "24" for point in "0123"
    ]
    summary = json.loads((folder / "sweep.json").read_text())
    assert summary["over"] == {"server.rate": [0.0001, 0.01], "seed": [0, 1]}
    assert summary["best"]["server.rate"] == float(points[0][0])
    assert summary["seconds"] > summary["compile_seconds"] > 0
    assert json.loads((folder / "config.json").read_text())["rounds"] == 4
    assert (folder / "heatmap.png").read_bytes()[1:4] == b"PNG"
    head, _, first, *_ = (folder / "sweep.md").read_text().splitlines()
    assert head == "| server.rate | test accuracy (%), +- deviation over seeds |"
    assert first.split(" | ")[-1].split(" |")[0] in lines[10]
    assert "finished run" in refused(folder, tmp_path / "out")


def test_what_is_wrong_is_said_before_anything_is_compiled(tmp_path):
    done = sweep(tmp_path / "run", "--over=client.rate=0.1,-1")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("error: Expected client.rate > 0")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
