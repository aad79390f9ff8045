"""A private run as a user starts it: killed, resumed, and nothing left."""

import shutil
import signal
import stat

import pytest

from fl_sketch.workdir import odometer, secrets
from fl_sketch.workdir.folder import KEY, summary_in
from fl_sketch.workdir.weights import CONFIG
from tests.launch.test_release import refused
from tests.launch.test_train import saved, wait_for_rounds
from tests.launching import Started, launch_anew, launch_python

pytestmark = pytest.mark.slow

SHORT = (
    "--config=configs/private_safl.py",
    "--config.rounds=100",
    "--config.eval_every=50",
    "--config.checkpoint_every=1",
)


def train(workdir, *overrides, by=launch_python):
    done = by("-m", "launch.train", *SHORT, f"--workdir={workdir}", *overrides)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_simulation_gives_the_same_bytes_and_says_what_it_is(tmp_path):
    """And is not released."""
    few = "--config.rounds=4", "--config.privacy.randomness=seed"
    said = train(tmp_path / "a", *few)
    train(tmp_path / "b", *few, by=launch_anew)
    assert saved(tmp_path / "a") == saved(tmp_path / "b")
    assert "SIMULATED" in said and "(simulated)" in said
    assert summary_in(tmp_path / "a")["randomness"] == "simulated"
    refusal = refused(tmp_path / "a", tmp_path / "out")
    assert "a simulation: its noise follows from" in refusal
    assert not (tmp_path / "out").exists()


def test_a_killed_run_goes_on_to_the_bit_and_no_secret_is_left(tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    words = ("-m", "launch.train", *SHORT, f"--workdir={killed}")
    with Started(*words) as command:
        wait_for_rounds(killed, command)
        command.send(signal.SIGKILL)
        command.wait()
    assert not (killed / "summary.json").exists()
    secret = killed / "secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    raw = secret.read_bytes()
    # A run that has begun in another folder with the same secret is the same run.
    whole.mkdir()
    for name in (secrets.FILE, odometer.FILE, CONFIG, KEY):
        shutil.copy(killed / name, whole / name)
    train(whole, by=launch_anew)
    said = train(killed)
    assert "after round" in said and "simulated" not in said.lower()
    assert summary_in(killed)["epsilon"] == summary_in(whole)["epsilon"] <= 8.0
    assert saved(killed) == saved(whole)
    for folder in (killed, whole):
        assert not (folder / "secret").exists()
        left = b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())
        assert raw not in left and raw.hex().encode() not in left
