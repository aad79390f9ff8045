"""A run resumes only with what it began with, and says what differs if it does not."""

import shutil

import jax
import numpy as np
import pytest

from fl_sketch import engine
from fl_sketch.config import parse
from fl_sketch.engine import loop
from fl_sketch.run import load_params, prepare
from fl_sketch.workdir import checkpoint, identity
from tests.run import configs
from tests.run.configs import config_with, numbers, refused, stop_at, table

pytestmark = pytest.mark.slow

KEYS = {"rounds": 8, "eval_every": 2, "checkpoint_every": 2}
SAMPLED = {"cohort__sampling": "fixed"}


def ran(folder, *rest, accept=(), **changes):
    return configs.ran(folder, *rest, accept=accept, **SAMPLED | KEYS | changes)


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


def test_a_config_that_is_lost_is_no_way_to_another_seed(folder, ended):
    (folder / "config.json").unlink()
    with refused("round_00000002.npz", "config"):
        ran(folder, seed=5)
    ran(folder)
    assert numbers(folder)[0] == numbers(ended)[0]


def test_checkpoints_of_another_run_or_round_are_refused(folder, tmp_path):
    stopped(tmp_path / "two", seed=5)
    checkpoints = folder / "checkpoints"
    own = checkpoint.path_of(checkpoints, 2)
    shutil.copy(own, checkpoint.path_of(checkpoints, 6))
    with refused("round_00000006.npz", "round 2"):
        ran(folder)
    checkpoint.path_of(checkpoints, 6).unlink()
    shutil.copy(tmp_path / "two/checkpoints" / own.name, own)
    with refused(own, "config"):
        ran(folder)


def test_other_versions_are_refused_unless_they_are_accepted(folder, monkeypatch):
    real = identity.versions()
    monkeypatch.setattr(identity, "versions", lambda: real | {"jax": "9.9"})
    with refused(f"jax {real['jax']}", "jax 9.9", "--accept=versions"):
        ran(folder)
    ran(folder, accept=["versions"])


def test_other_settings_of_jax_are_refused(folder):
    before = jax.config.jax_threefry_partitionable
    jax.config.update("jax_threefry_partitionable", not before)
    try:
        with refused(f"jax_threefry_partitionable {before}"):
            ran(folder)
    finally:
        jax.config.update("jax_threefry_partitionable", before)
    assert len(identity.source()) == 64


def test_other_devices_are_refused_unless_they_are_accepted(folder, ended, monkeypatch):
    real = identity.identity_of

    def elsewhere(*values, **more):
        return real(*values, **more)._replace(devices="1 cpu")

    monkeypatch.setattr("fl_sketch.run.setup.identity_of", elsewhere)
    own = "2 cpu, each with a core" if engine.cores() <= 2 else "2 cpu"
    with refused(own, "1 cpu", "--accept=devices"):
        ran(folder)
    ran(folder, accept=["devices"])
    ours, theirs = (load_params(at)["dense"]["bias"] for at in (folder, ended))
    np.testing.assert_array_equal(ours, theirs)
    with refused("accept", "'devices'", "'device'"):
        ran(folder, accept=["device"])


@pytest.mark.parametrize("text", ["", "\x00\x01,\nround\n1,2,3\n"], ids=range(2))
def test_rows_that_are_lost_or_of_anything_else_are_written_again(folder, ended, text):
    path = folder / "metrics.csv"
    path.unlink()
    if text:
        path.write_bytes(text.encode() + b"\xff\n")
    ran(folder)
    assert numbers(folder)[0] == numbers(ended)[0]


def test_rows_that_are_lost_at_a_checkpoint_between_rows_are_written_again(
    tmp_path, ended, monkeypatch
):
    stop_at(tmp_path / "cut", 5, monkeypatch, **SAMPLED, **KEYS)
    (tmp_path / "cut/metrics.csv").unlink()
    ran(tmp_path / "cut")
    assert numbers(tmp_path / "cut")[0] == numbers(ended)[0]


def test_there_is_room_for_the_reports_of_the_rounds_there_are():
    for rounds, every, most in ((3, 10**7, 3), (10**6, 10**6, loop.MOST), (9, 4, 4)):
        setup = prepare(config_with(rounds=rounds, eval_every=every))
        assert setup.play(parse.numbers_of(setup.config)).most == most


def test_what_is_left_of_a_run_is_no_one_else_s(done, tmp_path):
    whole = (done / "config.json").read_text()
    (done / "config.json").unlink()
    with refused("config"):
        ran(done, seed=9)
    assert not (done / "config.json").exists()
    ran(done)  # its own one is written again
    assert (done / "config.json").read_text() == whole
    (tmp_path / "two").mkdir()
    shutil.copy(done / "summary.json", tmp_path / "two")
    with refused("summary.json"):
        ran(tmp_path / "two", seed=9)


def test_a_run_that_is_done_has_its_parameters_again(done):
    before = (done / "params.safetensors").read_bytes()
    (done / "params.safetensors").unlink()
    ran(done)
    assert (done / "params.safetensors").read_bytes() == before


def test_links_in_a_folder_are_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "elsewhere")
    with refused("checkpoints", tmp_path / "run"):
        ran(tmp_path / "run")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", '{"a": 1}'),
        ("summary.json", "[" * 100_000),
        ("config.json", '{"format": 4, "identity": null}'),
        ("config.json", '{"format": 4, "files": [1]}'),
        ("config.json", "[" * 100_000),
        ("config.json", "[]"),
        ("config.json", '{"format": 3}'),
    ],
    ids=range(7),
)
def test_a_file_of_something_else_is_refused_by_its_name(done, name, content):
    (done / name).write_text(content)
    with refused(done if "3}" in content else done / name):
        ran(done)


def test_a_folder_in_the_place_of_the_rows_gets_one_line(done, folder):
    for place in (done, folder):
        (place / "metrics.csv").unlink()
        (place / "metrics.csv").mkdir()
    with refused(folder / "metrics.csv"):
        ran(folder)
    ran(done)  # which needs no rows
