"""A run resumes only with what it began with, and says what differs if it does not."""

import shutil

import pytest

from fl_sketch.workdir import checkpoint, identity
from tests.run import configs
from tests.run.configs import config_with, numbers, refused

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
        ("config.json", '{"format": 4, "identity": null}'),
        ("config.json", "[" * 100_000),
        ("config.json", '{"format": 3}'),
    ],
    ids=range(4),
)
def test_a_file_of_something_else_is_refused_by_its_name(done, name, content):
    (done / name).write_text(content)
    with refused(done if "3}" in content else done / name):
        ran(done)
