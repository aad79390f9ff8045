"""A run that is stopped, damaged or short of disk resumes to the byte."""

import errno
import os
import signal

import chex
import pytest

from fl_sketch import engine
from fl_sketch.engine import loop
from fl_sketch.engine.loop import initial
from fl_sketch.engine.rounds import compile_rounds
from fl_sketch.run import prepare
from fl_sketch.workdir import checkpoint
from tests.run.configs import (
    LENGTHS,
    config_with,
    numbers,
    ran,
    refused,
    stop_at,
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


def test_a_run_stopped_by_a_signal_resumes_exactly(whole, tmp_path, monkeypatch):
    stopped = stop_at(tmp_path, 4, monkeypatch, signal.SIGTERM)
    assert not (tmp_path / "summary.json").exists()
    assert checkpoint.rounds(tmp_path / "checkpoints")[-1] == stopped
    ran(tmp_path)
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


def test_how_a_run_is_cut_into_chunks_changes_nothing(monkeypatch):
    setup, ends = prepare(config_with(**LENGTHS)), []
    experiment, roots = setup.experiment, setup.roots()
    program = compile_rounds(experiment, initial(experiment, roots).state, roots)
    options = {"key": roots, "compiled": lambda *given: program}
    for seconds in (0.0, 100.0):  # one round a chunk, or as many as there is room for
        monkeypatch.setattr(loop, "SECONDS", seconds)
        end = engine.run(experiment, **options)
        ends.append((end.state.server, end.state.ledger, end.column("train_loss")))
    chex.assert_trees_all_equal(*ends)
