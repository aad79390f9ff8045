"""python -m launch.train: a table, a folder, and one line for what is wrong."""

import csv
import json
import os
import random
import signal
import time

import jax
import numpy as np
import pytest

from fl_sketch import engine
from fl_sketch.core.keys import cohort_key
from fl_sketch.workdir import checkpoint, config_file
from fl_sketch.workdir.folder import TIMES
from tests.launch.test_release import refused
from tests.launching import Started, launch, launch_anew

pytestmark = pytest.mark.slow


def arguments(workdir, *overrides, config="configs/default.py"):
    return "launch.train", f"--config={config}", f"--workdir={workdir}", *overrides


def train(workdir, *overrides):
    return launch(*arguments(workdir, *overrides))


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
    done = train(tmp_path / "run", *SHORT)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("safl: logistic of 650 parameters on digits, 20 clients")
    assert "32 numbers, 20.31 times fewer" in lines[1]
    assert "privacy: none" in lines[3]
    assert [line.split()[0] for line in lines[5:7]] == ["3", "6"]

    folder = tmp_path / "run"
    config = json.loads((folder / "config.json").read_text())
    assert config["rounds"] == 6 and config["model"]["name"] == "logistic"
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [row["round"] for row in rows] == ["3", "6"]
    assert [p.name for p in (folder / "checkpoints").iterdir()] == [
        "round_00000006.npz"
    ]
    assert (folder / "curves.png").exists()
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
    for name in ("test_accuracy", "test_loss", "train_loss"):
        assert summary[name] == float(rows[-1][name])
    for name in ("rounds_per_second", "compile_seconds", "peak_rss_mb"):
        assert summary[name] > 0
    assert summary["versions"]["jax"]

    again = train(folder, "--config.rounds=3", *SHORT[1:])
    assert again.returncode == 2
    assert "(rounds=6), got rounds=3" in again.stderr

    said = refused(folder, tmp_path / "out")
    assert "error: Expected a private run in odometer.json" in said


def saved(folder):
    """Returns rows without times, and the newest checkpoint without its identity.

    Private data have digests by a key of the folder.
    """
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    path = max((folder / "checkpoints").glob("*.npz"))
    kept = [{k: v for k, v in row.items() if k not in TIMES} for row in rows]
    with np.load(path) as arrays:
        whole = {name: arrays[name].tobytes() for name in arrays.files}
    whole.pop(checkpoint.EXTRA + config_file.IDENTITY)
    return kept, path.name, whole


LONG = (
    "--config.rounds=1000",
    "--config.eval_every=100",
    "--config.checkpoint_every=2",
    "--config.model.name=logistic",
    "--config.compute.devices=2",
)


def wait_for_rounds(folder, command):
    """Waits until a run writes checkpoints."""
    names = before = sorted(path.name for path in folder.glob("checkpoints/*.npz"))
    while names == before:
        assert command.runs(), command.said()
        time.sleep(0.005)
        names = sorted(path.name for path in folder.glob("checkpoints/*.npz"))


def test_runs_stopped_at_random_moments_end_as_if_they_had_not_been(tmp_path):
    """Killed, or asked to stop; then they save and say how to go on."""
    rng = random.Random(0)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    # Another process, whose sets and dictionaries of strings have another order.
    done = launch_anew("-m", *arguments(whole, *LONG))
    assert done.returncode == 0, done.stderr
    for number in [signal.SIGKILL] * 3 + [signal.SIGINT, signal.SIGTERM]:
        with Started("-m", *arguments(broken, *LONG)) as command:
            wait_for_rounds(broken, command)
            time.sleep(rng.uniform(0, 0.1))
            command.send(number)
            code, (_, errors) = command.wait(), command.said()
        if number == signal.SIGKILL:
            assert code == -signal.SIGKILL
        else:
            assert code == 130
            stopped = errors.split()[3].rstrip(";")
            assert errors == (
                f"stopped after round {stopped}; run the same command again to resume\n"
            )
            newest = max(os.listdir(broken / "checkpoints"))
            assert newest == f"round_{int(stopped):08d}.npz"
    done = train(broken, *LONG)
    assert done.returncode == 0, done.stderr
    assert "after round" in done.stdout
    assert saved(broken) == saved(whole)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("--config.client.rate=-1",), "error: Expected client.rate > 0"),
        (("--config.cohort.size=99",), "size=99"),
        (("--config.data.name=mnist", "--data_dir=/no/such"), "/no/such"),
        (("--workdir=/proc/none",), "workdir=/proc/none"),
        (("--config.rouns=3",), "config.rouns. Did you mean 'rounds'?"),
        (("--config.server.rat=3",), "Did you mean 'server.rate'?"),
        (("--config.rounds=many",), "an integer, got rounds=many"),
        (("--config.rounds=2.5",), "an integer, got rounds=2.5"),
        (("--config.data.clients=2000",), "2000"),
        (("--config=configs/none.py",), "configs/none.py"),
        (("--work=/tmp",), "'work'"),
        (("--workdir=",), "workdir"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_compiled(tmp_path, overrides, words):
    done = train(tmp_path / "run", *overrides)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert not (tmp_path / "run" / "metrics.csv").exists()
