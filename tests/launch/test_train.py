"""python -m launch.train: a table, a folder, and one line for what is wrong."""

import csv
import json
import time

import jax
import numpy as np
import pytest

from fl_sketch import engine
from fl_sketch.core.keys import cohort_key
from fl_sketch.workdir import checkpoint, identity
from fl_sketch.workdir.folder import TIMES
from tests.launching import launch

pytestmark = pytest.mark.slow


def arguments(workdir, *overrides, config="configs/default.py"):
    return "launch.train", f"--config={config}", f"--workdir={workdir}", *overrides


SHORT = ("--config.rounds=6", "--config.eval_every=3", "--config.model.name=logistic")


def bytes_down_of_followers(rounds, model, message):
    """Returns what 10 of 20 clients a round fetch that follow, by the seed's cohorts.

    Adam's moments, twice the model and a count, are more than six messages: who is new
    or was away fetches the messages that it lacks.
    """
    sampler, last, total = engine.fixed_size(20, 10), {}, 0
    for number in range(rounds):
        for client in sampler(cohort_key(jax.random.key(0), number)).ids.tolist():
            new = client not in last
            total += model * new + message * (number - last.get(client, 0))
            last[client] = number
    return total


def test_a_run_leaves_its_config_its_rows_and_its_summary(tmp_path):
    done = launch(*arguments(tmp_path / "run", *SHORT))
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    folder = tmp_path / "run"
    config = json.loads((folder / "config.json").read_text())
    assert config["rounds"] == 6 and config["model"]["name"] == "logistic"
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [row["round"] for row in rows] == ["3", "6"]
    assert [p.name for p in (folder / "checkpoints").iterdir()] == [
        "round_00000006.npz"
    ]
    summary = json.loads((folder / "summary.json").read_text())
    expected = {
        "algorithm": "safl",
        "d": 650,
        "sketch_size": 32,
        "compression": 650 / 32,
        "rounds": 6,
        "clients": 20,
        "bytes_up_per_client_round": 32 * 4,
        "download": "messages",
        "bytes_down_to_follow": 32 * 4,
        "bytes_down_of_the_model": 650 * 4,
        "bytes_up_total": 6 * 10 * 32 * 4,
        "epsilon": None,
        "delta": None,
        "seed": 0,
    }
    assert expected.items() <= summary.items()
    total = bytes_down_of_followers(rounds=6, model=650 * 4, message=32 * 4)
    assert summary["bytes_down_total"] == total
    assert summary["bytes_down_per_client_round"] == total / 60


def saved(folder):
    """Returns rows without times, and the newest checkpoint without its identity.

    Private data have digests by a key of the folder.
    """
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    path = max((folder / "checkpoints").glob("*.npz"))
    kept = [{k: v for k, v in row.items() if k not in TIMES} for row in rows]
    with np.load(path) as arrays:
        whole = {name: arrays[name].tobytes() for name in arrays.files}
    whole.pop(checkpoint.EXTRA + identity.IDENTITY)
    return kept, path.name, whole


def wait_for_rounds(folder, command):
    """Waits until a run writes checkpoints."""
    names = before = sorted(path.name for path in folder.glob("checkpoints/*.npz"))
    while names == before:
        assert command.runs(), command.said()
        time.sleep(0.005)
        names = sorted(path.name for path in folder.glob("checkpoints/*.npz"))
