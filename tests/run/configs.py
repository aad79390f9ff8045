"""Configs and runs for tests: a small model on two devices, with a few keys changed."""

import json
import os
import signal

import numpy as np
import pytest

from configs import default
from fl_sketch import engine
from fl_sketch.core import files
from fl_sketch.engine.loop import Stopped, initial
from fl_sketch.run import bar, prepare, run
from fl_sketch.workdir.folder import TIMES
from tests.refusals import refused as refused

LENGTHS = {"rounds": 12, "eval_every": 5, "checkpoint_every": 3}
NOISY = {
    "cohort__sampling": "poisson",
    "privacy__bound": "clip",
    "privacy__noise_multiplier": 1.0,
    "data__classes": 10,
}


def config_with(**changes):
    """Returns the defaults with changes, as in `server__rate=0.1`."""
    config = default.get_config()
    config.compute.devices = 2
    config.model.name = "logistic"
    for key, value in changes.items():
        *groups, name = key.split("__")
        place = config
        for group in groups:
            place = place[group]
        place[name] = value
    return config


def quiet(line):
    del line


def played(config, data_dir=None, callbacks=()):
    """Plays the run of a config to its end, without a folder."""
    setup = prepare(config, data_dir)
    return engine.run(setup.experiment, key=setup.roots(), callbacks=callbacks)


def begun(config, data_dir=None):
    """Returns the state of a run before its first round."""
    setup = prepare(config, data_dir)
    return initial(setup.experiment, setup.roots()).state


def rows_of(data_dir=None, **changes):
    """Returns the rows of such a config's run, which leaves no files."""
    return played(config_with(**changes), data_dir).history


def ran(folder, data_dir=None, **changes):
    """Runs in a folder; returns its summary, and the lines that it printed."""
    lines = []
    config = config_with(**LENGTHS | {"cohort__sampling": "poisson"} | changes)
    summary = run(config, folder, data_dir, say=lines.append)
    return summary, lines


def table_in(folder, name="metrics.csv"):
    return files.read_rows(folder / name)


def read_json(path):
    return json.loads(path.read_text())


def untimed(folder):
    """Returns metrics.csv without the times."""
    rows = table_in(folder)
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def numbers(folder):
    """Returns metrics.csv without the times, and the bytes of the checkpoints."""
    paths = sorted((folder / "checkpoints").iterdir())
    return untimed(folder), [(path.name, path.read_bytes()) for path in paths]


class Killed(BaseException):
    """What a test kills a run with."""


def killed_at(row, config, folder, data_dir=None):
    """Runs until a row, counted from 1, and dies."""
    rows = []

    def die(values):
        rows.append(values)
        if len(rows) == row:
            raise Killed

    with pytest.raises(Killed):
        run(config, folder, data_dir, on_row=die, say=quiet)


def moving(patch, move):
    """Makes the bar of the next runs a function of the number of rounds done."""

    patch.setattr(bar.Bar, "on_chunk", lambda self, done, loss: move(done))


def signalled(number, patch, sent):
    """Sends a signal in the first chunk that ends at or after a round."""
    came = []

    def move(now):
        if now >= number and not came:
            came.append(now)
            os.kill(os.getpid(), sent)

    moving(patch, move)
    return came


def stop_at(folder, number, monkeypatch, sent=signal.SIGTERM, **changes):
    """Runs until the first chunk that ends at or after a round, then a signal."""
    before = signal.getsignal(sent)
    if before == signal.SIG_IGN:  # tests under nohup: hang-ups are ignored
        signal.signal(sent, signal.SIG_DFL)
    try:
        with monkeypatch.context() as patch:
            came = signalled(number, patch, sent)
            with pytest.raises(Stopped):
                ran(folder, **changes)
    finally:
        signal.signal(sent, before)
    return came[0]


def table(path, seed, parts=("train", "test")):
    """Writes an npz file of 60 random examples of three classes for each part."""
    random = np.random.default_rng(seed)
    inputs, targets = random.normal(size=(60, 5)), random.permutation(60) % 3
    arrays = {"inputs": inputs, "targets": targets}
    np.savez(path, **{f"{p}_{name}": x for p in parts for name, x in arrays.items()})
