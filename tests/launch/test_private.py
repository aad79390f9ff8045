"""A private run as a user starts it: another model each time, and nothing left."""

import json
import shutil
import signal
import stat
import subprocess
import sys
import time

import pytest

from tests.launch.test_train import saved
from tests.launching import ENVIRONMENT, launch

pytestmark = pytest.mark.slow

SHORT = (
    "--config=configs/private_safl.py",
    "--config.rounds=40",
    "--config.eval_every=10",
    "--config.checkpoint_every=5",
)


def train(workdir, *overrides):
    done = launch("launch.train", *SHORT, f"--workdir={workdir}", *overrides)
    assert done.returncode == 0, done.stderr
    return done.stdout


def summary(workdir):
    return json.loads((workdir / "summary.json").read_text())


def test_two_runs_give_other_parameters_and_the_same_epsilon(tmp_path):
    said = [train(tmp_path / name) for name in "ab"]
    one, other = (summary(tmp_path / name) for name in "ab")
    assert one["epsilon"] == other["epsilon"] <= 8.0
    assert one["test_loss"] != other["test_loss"]
    assert saved(tmp_path / "a")[2] != saved(tmp_path / "b")[2]
    assert "simulated" not in said[0].lower()


def test_a_simulation_gives_the_same_bytes_and_says_what_it_is(tmp_path):
    seed = "--config.privacy.randomness=seed"
    said = [train(tmp_path / name, seed) for name in "ab"]
    assert saved(tmp_path / "a") == saved(tmp_path / "b")
    assert "SIMULATED" in said[0] and "(simulated)" in said[0]
    assert summary(tmp_path / "a")["randomness"] == "simulated"


def test_a_killed_run_goes_on_to_the_bit_and_no_secret_is_left(tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    long = ("--config.rounds=1000", "--config.eval_every=100")
    start = [*SHORT, *long, f"--workdir={killed}"]
    command = [sys.executable, "-m", "launch.train", *start]
    process = subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not list((killed / "checkpoints").glob("*.npz")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    secret = killed / "secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    raw = secret.read_bytes()
    # A run that has begun in another folder with the same secret is the same run.
    whole.mkdir()
    for name in ("secret", "config.json", "odometer.json"):
        shutil.copy(killed / name, whole / name)
    train(whole, *long)
    assert "going on after round" in train(killed, *long)
    assert saved(killed) == saved(whole)
    for folder in (killed, whole):
        assert not (folder / "secret").exists()
        left = b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())
        assert raw not in left and raw.hex().encode() not in left
