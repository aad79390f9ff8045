"""The launchers run, say what they found, and refuse what they cannot do."""

import json
import os
import pathlib

import pytest

from launch import __main__ as index
from tests import pages
from tests.launching import launch

pytestmark = pytest.mark.slow


def test_benchmark_prints_a_table_and_its_json_lines(tmp_path):
    out = tmp_path / "rows.jsonl"
    done = launch(
        "launch.benchmark", "--suite=sketch", "--sizes=20000", "--compressions=100",
        "--clients=1", "--clients=2", "--operators=count_sketch", f"--out={out}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    kernels = [(row["operator"], row["kernel"], row["clients"]) for row in rows]
    assert kernels == [
        ("copy", "in place", 1),
        ("count_sketch", "apply", 1),
        ("count_sketch", "adjoint", 1),
        ("copy", "in place", 2),
        ("count_sketch", "apply, lax.map", 2),
        ("count_sketch", "apply, vmap", 2),
    ]
    assert all(row["ratio"] > 0 and row["b"] == 200 for row in rows)
    assert rows[0]["ratio"] == 1 and rows[0]["extra_vectors"] == 0
    assert out.read_text() in done.stdout
    assert "count_sketch" in done.stdout.splitlines()[3]


def test_benchmark_of_the_engine_uses_all_cores(tmp_path):
    out = tmp_path / "rows.jsonl"
    done = launch(
        "launch.benchmark", "--suite=engine", "--workloads=W3", "--forms=plain",
        "--forms=engine", "--rounds=3", "--cohort=4", f"--out={out}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["form"] for row in rows] == ["plain", "engine"]
    assert all(row["devices"] == len(os.sched_getaffinity(0)) for row in rows)
    assert all(row["cohort"] == 4 and row["seconds"] > 0 for row in rows)
    assert out.read_text() in done.stdout
    assert done.stdout.splitlines()[1].startswith("workload form")


def test_the_index_has_every_command_once():
    done = launch("launch")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    listed = [line.split()[2] for line in lines if "python -m" in line]
    files = pathlib.Path(index.__file__).parent.glob("*.py")
    mains = {f"launch.{f.stem}" for f in files if "command.run(" in f.read_text()}
    assert sorted(listed) == sorted(mains)
    assert all(len(line) <= 120 for line in lines)
    assert done.stdout in pages.PAGES["docs/api.md"]
