"""A run that is stopped, damaged or short of disk goes on as if it had not been."""

import contextlib
import csv
import importlib.util
import os
import signal

import chex
import numpy as np
import pytest
from fl_sketch.run.loop import Watch

from fl_sketch.engine import chunks as calls
from fl_sketch.run import Stopped, begin, build, display, run, train
from fl_sketch.workdir import checkpoint
from fl_sketch.workdir.folder import TIMES
from tests.run.configs import config_with

pytestmark = pytest.mark.slow

LENGTHS = {"rounds": 12, "eval_every": 5, "checkpoint_every": 3}


def numbers(folder):
    """Returns metrics.csv without the times, and the bytes of the checkpoints."""
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    kept = [{k: v for k, v in row.items() if k not in TIMES} for row in rows]
    files = sorted((folder / "checkpoints").iterdir())
    return kept, [(file.name, file.read_bytes()) for file in files]


def ran(folder, **changes):
    lines = []
    config = config_with(**LENGTHS | {"cohort__sampling": "poisson"} | changes)
    summary = run(config, folder, say=lines.append)
    return summary, lines


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    ran(folder)
    return folder


def test_a_run_leaves_rows_at_evaluations_and_its_last_checkpoints(whole):
    rows, files = numbers(whole)
    assert [row["round"] for row in rows] == ["5", "10", "12"]
    assert [name for name, _ in files] == ["round_00000009.npz", "round_00000012.npz"]


def test_the_same_seed_makes_the_same_bytes(whole, tmp_path):
    ran(tmp_path)
    assert numbers(tmp_path) == numbers(whole)


def signalled(number, monkeypatch, sent):
    """Sends a signal in the first call that ends at or after a round."""
    came = []

    @contextlib.contextmanager
    def bar(rounds, done, hidden):
        del rounds, done, hidden

        def move(now, loss):
            del loss
            if now >= number and not came:
                came.append(now)
                os.kill(os.getpid(), sent)

        yield move

    monkeypatch.setattr(display, "bar", bar)
    return came


def stop_at(folder, number, monkeypatch, sent=signal.SIGTERM, **changes):
    """Runs until the first call that ends at or after a round, then a signal."""
    before = signal.getsignal(sent)
    if before == signal.SIG_IGN:  # tests under nohup: hang-ups are ignored
        signal.signal(sent, signal.SIG_DFL)
    try:
        with monkeypatch.context() as patch:
            came = signalled(number, patch, sent)
            with pytest.raises(Stopped, match="stopped after round"):
                ran(folder, **changes)
    finally:
        signal.signal(sent, before)
    return came[0]


@pytest.mark.parametrize(
    ("number", "sent"),
    [
        (1, signal.SIGTERM),
        (4, signal.SIGHUP),
        (5, signal.SIGTERM),
        (8, signal.SIGINT),
    ],
)
def test_a_run_stopped_by_a_signal_goes_on_exactly(
    whole, tmp_path, number, sent, monkeypatch
):
    stopped = stop_at(tmp_path, number, monkeypatch, sent)
    assert not (tmp_path / "summary.json").exists()
    assert checkpoint.rounds(tmp_path / "checkpoints")[-1] == stopped
    _, lines = ran(tmp_path)
    assert f"going on after round {stopped}" in lines
    rows, files = numbers(tmp_path)
    expected_rows, expected_files = numbers(whole)
    assert rows == expected_rows and files[-1] == expected_files[-1]


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
    assert any(f"{newest.name} is damaged" in line for line in lines)
    assert "going on after round 9" in lines
    rows, files = numbers(tmp_path)
    assert rows == numbers(whole)[0] and files[-1] == numbers(whole)[1][-1]


def test_a_full_disk_at_a_checkpoint_is_said_and_the_run_goes_on(
    whole, tmp_path, monkeypatch
):
    save, full = checkpoint.save, [6, 9]

    def failing(folder, number, tree, **more):
        if number in full:
            raise OSError(28, os.strerror(28))
        save(folder, number, tree, **more)

    monkeypatch.setattr(checkpoint, "save", failing)
    _, lines = ran(tmp_path)
    assert [line for line in lines if "could not be written" in line] == [
        f"The checkpoint of round {number} could not be written (No space left on "
        "device); going on, the last one is of round 3."
        for number in full
    ]
    assert numbers(tmp_path)[0] == numbers(whole)[0]


def test_a_run_whose_last_checkpoint_cannot_be_written_is_not_done(
    whole, tmp_path, monkeypatch
):
    save = checkpoint.save

    def failing(folder, number, tree, **more):
        if number == 12:
            raise OSError(28, os.strerror(28))
        save(folder, number, tree, **more)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", failing)
        words = "room in .*checkpoints for the model after round 12, got No space left"
        with pytest.raises(ValueError, match=words):
            ran(tmp_path)
    assert not (tmp_path / "summary.json").exists()
    ran(tmp_path)
    assert numbers(tmp_path)[0] == numbers(whole)[0]


def test_a_run_that_is_done_is_not_done_again(whole):
    before = (whole / "metrics.csv").stat().st_mtime_ns
    summary, lines = ran(whole)
    assert summary["rounds"] == 12 and "holds this run already" in lines[-3]
    assert (whole / "metrics.csv").stat().st_mtime_ns == before


def test_rows_may_go_to_tensorboard_too(whole, tmp_path):
    config = config_with(**LENGTHS, cohort__sampling="poisson")
    run(config, tmp_path, tensorboard=True, say=lambda line: None)
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert events.stat().st_size > 500
    assert numbers(tmp_path) == numbers(whole)


def test_tensorboard_is_refused_where_it_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="tensorboardX"):
        run(config_with(), tmp_path, tensorboard=True)


def test_clients_state_is_part_of_a_checkpoint(tmp_path):
    built = build(config_with(**LENGTHS))
    progress = begin(built, 5)
    bank = np.arange(20.0)
    progress = progress._replace(state=progress.state._replace(clients=bank))
    checkpoint.save(tmp_path, 1, progress)
    _, loaded, _ = checkpoint.newest(tmp_path, progress, print)
    np.testing.assert_array_equal(loaded.state.clients, bank)


def test_how_a_run_is_cut_into_calls_changes_nothing(monkeypatch):
    built = build(config_with(**LENGTHS))
    compiled, ends = built.compile(), []
    for seconds in (0.0, 100.0):  # one round a call, or as many as there is room for
        monkeypatch.setattr(calls, "SECONDS", seconds)
        rows = []
        end = train(
            built,
            compiled,
            begin(built, 5),
            rounds=12,
            checkpoint_every=12,
            watch=Watch(row=rows.append),
        )
        ends.append((end.state, end.ledger, [row["train_loss"] for row in rows]))
    chex.assert_trees_all_equal(*ends)
