"""A run resumes only with what it began with, and says what differs if it does not."""

import shutil

import jax
import numpy as np
import pytest

from fl_sketch.core import platforms
from fl_sketch.engine import experiment
from fl_sketch.run import from_config, load_params
from fl_sketch.workdir import checkpoint, identity
from tests.run import configs
from tests.run.configs import config_with, refused, table

pytestmark = pytest.mark.slow

KEYS = {"rounds": 8, "eval_every": 2, "checkpoint_every": 2}
SAMPLED = {"cohort__sampling": "fixed"}


def ran(folder, *rest, **changes):
    return configs.ran(folder, *rest, **SAMPLED | KEYS | changes)


def stopped(folder, *rest, **changes):
    """Runs until the second row, and dies: the newest checkpoint is of round 2."""
    configs.killed_at(2, config_with(**KEYS | changes), folder, *rest)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended")
    ran(folder)
    return folder


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    stopped(folder)
    return folder


@pytest.fixture
def folder(cut, tmp_path):
    """A copy of a run that was killed between its first two checkpoints."""
    return shutil.copytree(cut, tmp_path / "run")


@pytest.fixture
def done(ended, tmp_path):
    return shutil.copytree(ended, tmp_path / "done")


def test_other_data_of_the_same_shape_are_refused(tmp_path):
    table(tmp_path / "own.npz", 0)
    changes = {"data__name": "npz/own", "data__clients": 6, "cohort__size": 3}
    stopped(tmp_path / "run", tmp_path, **changes)
    table(tmp_path / "own.npz", 1)
    with refused("train_inputs", tmp_path / "run"):
        ran(tmp_path / "run", tmp_path, **changes)
    table(tmp_path / "own.npz", 0)
    ran(tmp_path / "run", tmp_path, **changes)


def test_checkpoints_of_another_run_or_round_are_refused(folder, tmp_path):
    stopped(tmp_path / "two", seed=5)
    checkpoints = folder / "checkpoints"
    own = checkpoint.path_of(checkpoints, 2)
    shutil.copy(own, checkpoint.path_of(checkpoints, 6))
    with refused("round_00000006.npz", "round 2"):
        ran(folder)
    checkpoint.path_of(checkpoints, 6).unlink()
    shutil.copy(tmp_path / "two/checkpoints" / own.name, own)
    with refused(own, "another's"):
        ran(folder)


def test_other_versions_and_devices_are_said_and_settings_refused(
    folder, ended, monkeypatch
):
    real, own = platforms.versions(), identity.contents

    def elsewhere(config, made):
        return own(config, made._replace(devices="1 cpu"))

    with monkeypatch.context() as patch:
        patch.setattr(platforms, "versions", lambda: real | {"jax": "9.9"})
        patch.setattr(identity, "contents", elsewhere)
        _, lines = ran(folder)
    (line,) = [line for line in lines if "last bits" in line]
    assert f"jax {real['jax']} (now 9.9)" in line and "(now 1 cpu)" in line
    ours, theirs = (load_params(at)["dense"]["bias"] for at in (folder, ended))
    np.testing.assert_array_equal(ours, theirs)
    before = jax.config.jax_threefry_partitionable
    jax.config.update("jax_threefry_partitionable", not before)
    try:
        with refused("jax_threefry_partitionable"):
            ran(folder)
    finally:
        jax.config.update("jax_threefry_partitionable", before)


def test_there_is_room_for_the_reports_of_the_rounds_there_are():
    for rounds, every, most in (
        (3, 10**7, 3),
        (10**6, 10**6, experiment.MOST),
        (9, 4, 4),
    ):
        config = config_with(rounds=rounds, eval_every=every)
        assert from_config(config).most == most


def test_a_run_that_is_done_has_its_parameters_again(done):
    before = (done / "params.safetensors").read_bytes()
    (done / "params.safetensors").unlink()
    ran(done)
    assert (done / "params.safetensors").read_bytes() == before


@pytest.mark.parametrize("content", ['{"a": 1}', "[" * 100_000])
def test_a_summary_of_something_else_is_refused_by_its_name(done, content):
    (done / "summary.json").write_text(content)
    with refused("summary.json"):
        ran(done)
