"""A run goes on with what it began with, and says what differs if it does not."""

import shutil

import jax
import numpy as np
import pytest
from fl_sketch.run.program import most_of

from fl_sketch import engine
from fl_sketch.run import load_params, prepare, run
from fl_sketch.workdir import identity
from tests.run.configs import config_with
from tests.run.test_run import numbers, stop_at

pytestmark = pytest.mark.slow

KEYS = {"rounds": 8, "eval_every": 2, "checkpoint_every": 2}


def ran(folder, data_dir=None, accept=(), **changes):
    lines = []
    config = config_with(**KEYS | changes)
    run(config, folder, data_dir, accept=accept, say=lines.append)
    return lines


class Killed(BaseException):
    pass


def stopped(folder, data_dir=None, **changes):
    """Runs until the second row, and dies."""
    rows = []

    def die(row):
        rows.append(row)
        if len(rows) == 2:
            raise Killed

    config = config_with(**KEYS | changes)
    with pytest.raises(Killed):
        run(config, folder, data_dir, on_row=die, say=lambda line: None)


def refused(words, folder, *rest, **changes):
    with pytest.raises(ValueError, match=words) as caught:
        ran(folder, *rest, **changes)
    assert "\n" not in str(caught.value)


def table(path, seed):
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(60, 5)), np.arange(60) % 3
    parts = {f"{p}_{k}": a for p in ("train", "test") for k, a in
             {"inputs": x, "targets": y}.items()}  # fmt: skip
    np.savez(path, **parts)


def test_other_data_of_the_same_shape_are_refused(tmp_path):
    table(tmp_path / "own.npz", 0)
    changes = {"data__name": "npz/own", "data__clients": 6, "cohort__size": 3}
    stopped(tmp_path / "run", tmp_path, **changes)
    table(tmp_path / "own.npz", 1)
    words = "the data's train_inputs as it was when the run in workdir=.*take another"
    refused(words, tmp_path / "run", tmp_path, **changes)
    table(tmp_path / "own.npz", 0)
    ran(tmp_path / "run", tmp_path, **changes)


def test_a_config_that_is_lost_is_no_way_to_another_seed(tmp_path):
    stopped(tmp_path)
    (tmp_path / "config.json").unlink()
    words = "round_00000002.npz to be of this run, got one of another config"
    refused(words, tmp_path, seed=5)
    assert "going on after round 2" in ran(tmp_path)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    stopped(tmp_path / "one")
    stopped(tmp_path / "two", seed=5)
    name = "checkpoints/round_00000002.npz"
    shutil.copy(tmp_path / "two" / name, tmp_path / "one" / name)
    refused("got one of another config: put it away", tmp_path / "one")


def test_a_checkpoint_by_another_name_is_refused(tmp_path):
    stopped(tmp_path)
    folder = tmp_path / "checkpoints"
    shutil.copy(folder / "round_00000002.npz", folder / "round_00000006.npz")
    refused("to be the checkpoint of its round, got that of round 2", tmp_path)


def test_other_versions_are_refused_unless_they_are_accepted(tmp_path, monkeypatch):
    stopped(tmp_path)
    real = identity.versions()
    monkeypatch.setattr(identity, "versions", lambda: real | {"jax": "9.9"})
    words = (
        f"one of jax {real['jax']}, and here are jax 9.9: with --accept=versions the"
    )
    refused(words, tmp_path)
    assert "going on after round 2" in ran(tmp_path, accept=["versions"])


def test_other_devices_are_refused_unless_they_are_accepted(tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    ran(whole)
    stopped(tmp_path / "run")
    real = identity.identity_of
    other = lambda *given: real(*given)._replace(devices="1 cpu")  # noqa: E731
    monkeypatch.setattr("fl_sketch.run.program.identity_of", other)
    own = "2 cpu, each with a core" if engine.cores() <= 2 else "2 cpu"
    words = f"one of {own}, and here are 1 cpu: with --accept=devices .* last bits"
    refused(words, tmp_path / "run")
    ran(tmp_path / "run", accept=["devices"])
    ours, theirs = (load_params(at) for at in (tmp_path / "run", whole))
    np.testing.assert_array_equal(ours["dense"]["bias"], theirs["dense"]["bias"])
    with pytest.raises(ValueError, match="accept to be one of 'versions', 'devices'"):
        ran(tmp_path / "run", accept=["device"])


def test_rows_that_are_lost_while_it_runs_no_more_are_put_back(tmp_path, monkeypatch):
    ran(tmp_path / "whole")
    changes = {"cohort__sampling": "fixed"} | KEYS
    stop_at(tmp_path / "cut", 5, monkeypatch, **changes)
    (tmp_path / "cut/metrics.csv").unlink()
    lines = ran(tmp_path / "cut")
    assert any(line.endswith("they are as the run left them") for line in lines)
    assert numbers(tmp_path / "cut")[0] == numbers(tmp_path / "whole")[0]


def test_there_is_room_for_the_reports_of_the_rounds_there_are():
    config = config_with(rounds=3, eval_every=10**7)
    assert most_of(config) == prepare(config).most == 3
    assert most_of(config_with(rounds=10**6, eval_every=10**6)) == 4096


def test_what_is_left_of_a_run_is_nobody_else_s(tmp_path):
    ran(tmp_path / "one")
    whole = (tmp_path / "one/config.json").read_text()
    (tmp_path / "one/config.json").unlink()
    refused("to be of this run, got one of another config", tmp_path / "one", seed=9)
    assert not (tmp_path / "one/config.json").exists()
    ran(tmp_path / "one")  # its own one is written again
    assert (tmp_path / "one/config.json").read_text() == whole
    (tmp_path / "two").mkdir()
    shutil.copy(tmp_path / "one/summary.json", tmp_path / "two")
    refused("summary.json to be of this run, got", tmp_path / "two", seed=9)


def test_a_run_that_is_done_has_its_parameters_again(tmp_path):
    ran(tmp_path)
    file = tmp_path / "params.safetensors"
    before = file.read_bytes()
    file.unlink()
    ran(tmp_path)
    assert file.read_bytes() == before


def test_links_in_a_folder_are_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "elsewhere")
    refused("no link in workdir=.*got checkpoints", tmp_path / "run")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", '{"a": 1}'),
        ("config.json", '{"format": 3, "identity": null}'),
        ("config.json", '{"format": 3, "files": [1]}'),
    ],
)
def test_a_file_of_something_else_is_refused_by_its_name(tmp_path, name, content):
    ran(tmp_path)
    (tmp_path / name).write_text(content)
    refused(name, tmp_path)


@pytest.mark.parametrize("text", ["x" * 200_000, "\x00\x01,\n", "round\n1,2,3\n"])
def test_rows_of_anything_else_are_put_back(tmp_path, text):
    stopped(tmp_path)
    (tmp_path / "metrics.csv").write_bytes(text.encode() + b"\xff\n")
    ran(tmp_path)
    assert [row["round"] for row in numbers(tmp_path)[0]] == ["2", "4", "6", "8"]


def test_other_settings_of_jax_are_refused(tmp_path):
    stopped(tmp_path)
    before = jax.config.jax_threefry_partitionable
    jax.config.update("jax_threefry_partitionable", not before)
    try:
        refused(f"one of jax_threefry_partitionable {before}, and here are", tmp_path)
    finally:
        jax.config.update("jax_threefry_partitionable", before)
    assert len(identity.source()) == 64
