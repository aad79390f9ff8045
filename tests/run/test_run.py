"""A run that is stopped, damaged or short of disk resumes to the byte."""

import errno
import importlib.util
import os
import signal

import chex
import pytest

from fl_sketch.engine import loop
from fl_sketch.run import run, task_of
from fl_sketch.workdir import checkpoint
from fl_sketch.workdir.folder import Workdir
from tests.run.configs import (
    LENGTHS,
    config_with,
    numbers,
    played,
    quiet,
    ran,
    refused,
    signalled,
    stop_at,
    table_in,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    ran(folder)
    return folder


def test_a_run_leaves_rows_at_evaluations_and_its_last_checkpoints(whole):
    rows, kept = numbers(whole)
    assert [row["round"] for row in rows] == ["5", "10", "12"]
    assert [name for name, _ in kept] == ["round_00000009.npz", "round_00000012.npz"]
    before = (whole / "metrics.csv").stat().st_mtime_ns
    summary, _ = ran(whole)  # it is done, and not done again
    assert summary["rounds"] == 12
    assert (whole / "metrics.csv").stat().st_mtime_ns == before


def test_rows_may_go_to_tensorboard_and_the_same_seed_makes_the_same_bytes(
    whole, tmp_path
):
    config = config_with(**LENGTHS, cohort__sampling="poisson")
    run(config, tmp_path, tensorboard=True, say=quiet)
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert events.stat().st_size > 500
    assert numbers(tmp_path) == numbers(whole)


def test_tensorboard_is_refused_where_it_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused("tensorboardX"):
        run(config_with(), tmp_path, tensorboard=True)


@pytest.mark.parametrize(
    ("number", "sent"),
    [(1, signal.SIGTERM), (4, signal.SIGHUP), (5, signal.SIGTERM), (8, signal.SIGINT)],
)
def test_a_run_stopped_by_a_signal_resumes_exactly(
    whole, tmp_path, number, sent, monkeypatch
):
    stopped = stop_at(tmp_path, number, monkeypatch, sent)
    assert not (tmp_path / "summary.json").exists()
    assert checkpoint.rounds(tmp_path / "checkpoints")[-1] == stopped
    saved, starts = [], loop.play

    def noted(compiled, state, recorders, rounds, **more):
        saved.append(rounds)
        return starts(compiled, state, recorders, rounds, **more)

    monkeypatch.setattr("fl_sketch.engine.resumable.play", noted)
    ran(tmp_path)
    assert saved == [(stopped, 12)]  # no round of the checkpoint is played again
    rows, kept = numbers(tmp_path)
    assert rows == numbers(whole)[0] and kept[-1] == numbers(whole)[1][-1]


def test_a_run_that_is_asked_to_save_does_so_and_goes_on(whole, tmp_path, monkeypatch):
    came, saved, save = signalled(4, monkeypatch, signal.SIGUSR1), [], checkpoint.save

    def noted(folder, number, *rest, **more):
        saved.append(number)
        save(folder, number, *rest, **more)

    monkeypatch.setattr(checkpoint, "save", noted)
    ran(tmp_path)
    assert sorted({*saved}) == sorted({came[0], 3, 6, 9, 12})
    assert numbers(tmp_path) == numbers(whole)


def test_what_was_ignored_before_still_is(whole, tmp_path, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        signalled(4, monkeypatch, signal.SIGHUP)
        ran(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert numbers(tmp_path)[0] == numbers(whole)[0]


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    whole, tmp_path, monkeypatch
):
    stop_at(tmp_path, 10, monkeypatch)
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    _, lines = ran(tmp_path)
    assert any(newest.name in line and "damaged" in line for line in lines)
    rows, kept = numbers(tmp_path)
    assert rows == numbers(whole)[0] and kept[-1] == numbers(whole)[1][-1]


def full_at(monkeypatch, *rounds):
    """Makes the disk full at the checkpoints of some rounds."""
    save = checkpoint.save

    def failing(folder, number, tree, **more):
        if number in rounds:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(folder, number, tree, **more)

    monkeypatch.setattr(checkpoint, "save", failing)


def test_a_full_disk_at_a_checkpoint_is_said_and_the_run_goes_on(
    whole, tmp_path, monkeypatch
):
    full_at(monkeypatch, 6, 9)
    _, lines = ran(tmp_path)
    failures = [line for line in lines if "No space left" in line]
    assert len(failures) == 2 and all("round 3" in line for line in failures)
    assert numbers(tmp_path)[0] == numbers(whole)[0]


def test_a_run_whose_last_checkpoint_cannot_be_written_is_not_done(
    whole, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        full_at(patch, 12)
        with refused("checkpoints", "round 12", "No space left"):
            ran(tmp_path)
    assert not (tmp_path / "summary.json").exists()
    ran(tmp_path)
    assert numbers(tmp_path)[0] == numbers(whole)[0]


def test_a_full_disk_at_a_row_names_the_file(tmp_path, monkeypatch):
    real = os.fsync

    def full(handle):
        if os.readlink(f"/proc/self/fd/{handle}").endswith("metrics.csv"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with refused(tmp_path / "metrics.csv", "No space left"):
        ran(tmp_path)


def test_how_a_run_is_cut_into_chunks_changes_nothing(monkeypatch):
    task = task_of(config_with(**LENGTHS))
    compiled, ends = task.compile(task.roots(task.secret)), []
    for seconds in (0.0, 100.0):  # one round a chunk, or as many as there is room for
        monkeypatch.setattr(loop, "SECONDS", seconds)
        end = played(task, compiled)
        losses = [row["train_loss"] for row in end.rows]
        ends.append((end.progress.state, end.progress.recorder.ledger, losses))
    chex.assert_trees_all_equal(*ends)


def test_a_run_in_a_folder_is_the_run_without_one(whole, tmp_path):
    task = task_of(config_with(**LENGTHS, cohort__sampling="poisson"))
    with Workdir(tmp_path, task.config, task.identity) as folder:
        rows = played(task, folder=folder).rows
    for row, theirs in zip(rows, table_in(whole), strict=True):
        assert str(row["test_loss"]) == theirs["test_loss"]
