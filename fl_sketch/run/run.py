"""Runs a config: begins or resumes, trains, and leaves everything in a folder."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch import engine
from fl_sketch.config import arguments
from fl_sketch.core.mappings import flat
from fl_sketch.engine import multiprocess, rounds
from fl_sketch.engine.loop import Callback, Progress
from fl_sketch.engine.recorder import Row
from fl_sketch.engine.still import RequireMoving
from fl_sketch.run import curves, display, facts
from fl_sketch.run.bar import Bar
from fl_sketch.run.client_report import ClientReport
from fl_sketch.run.folder import Folder
from fl_sketch.run.setup import Setup, prepare
from fl_sketch.run.signals import Signals
from fl_sketch.workdir import rows, trackers

PICTURE = "curves.png"
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Listeners:
    """Who is told of a run: the screen, TensorBoard, wandb, a function of rows."""

    tensorboard: bool = False
    wandb: bool = False
    on_row: Callable[[Row], None] | None = None
    say: Say = tqdm.write


class Terminal(Callback):
    """Prints a table of rows, and tells functions of them."""

    def __init__(self, setup: Setup, say: Say, told: Sequence[Callable[[Row], None]]):
        """Takes a setup, what prints a line, and functions of a row."""
        self._setup, self._say, self._told = setup, say, told

    def on_start(self, progress: Progress) -> Progress:
        """Says where the run goes on from."""
        if progress.done:
            self._say(f"resuming after round {progress.done}")
        return progress

    def on_compiled(self, progress: Progress) -> None:
        """Prints the head of the table."""
        del progress
        self._say(display.head(self._setup))

    def on_row(self, row: Row, progress: Progress) -> None:
        """Prints a row."""
        del progress
        self._say(display.row(row))
        for tell in self._told:
            tell(dict(row))


def run(
    config: ConfigDict,
    workdir: str,
    data_dir: str | None = None,
    *,
    tensorboard: bool = False,
    wandb: bool = False,
    on_row: Callable[[Row], None] | None = None,
    say: Say = tqdm.write,
) -> dict[str, Any]:
    """Runs a config to its end, from where an earlier run in the folder was stopped.

    A run that has ended goes on if `config.rounds` has grown, unless what was played
    depends on it.

    Args:
      config: a config as `configs/default.py` has it.
      workdir: the folder of the run.
      data_dir: the folder of raw data sets.
      tensorboard: whether to write events for TensorBoard too.
      wandb: whether to send rows to wandb.
      on_row: is called with every row.
      say: prints a line.

    Returns:
      The contents of summary.json.

    Raises:
      ValueError, TypeError, FileNotFoundError: in one line, before anything runs.
      NotFinite: if the training diverges.
      Stopped: on SIGINT, SIGTERM or SIGHUP, after the progress is saved.
    """
    for name, asked in {
        trackers.TENSORBOARD: tensorboard,
        trackers.WANDB: wandb,
    }.items():
        if asked:
            trackers.require_installed(name)
    setup, first = prepare(config, data_dir), multiprocess.is_first()
    say = say if first else lambda line: None
    return in_folder(setup, workdir, Listeners(tensorboard, wandb, on_row, say))


def fixed_by(setup: Setup, before: int) -> str:
    """Returns what of a run of `before` rounds depends on their number; empty: nothing.

    With more rounds it would then be another run from the first round on.
    """
    for key in arguments.by_length(setup.config):
        return key
    longer, shorter = setup.experiment, setup.longer(before).experiment
    if longer.private:
        assert longer.guarantee and shorter.guarantee
        if setup.config.privacy.randomness == "seed":
            return "privacy.randomness=seed"
        z = shorter.guarantee.noise_multiplier
        if z != longer.guarantee.noise_multiplier:
            return "privacy.target_epsilon, which chose the noise"
    if longer.prices.followed != shorter.prices.followed:
        return f"download={setup.config.download}"
    return ""


def in_folder(
    setup: Setup,
    workdir: str,
    told: Listeners,
    compiled: Callable[..., rounds.Advance] = rounds.compile_rounds,
) -> dict[str, Any]:
    """Runs a setup to its end in a folder; returns and raises what `run` does.

    The rounds may be played elsewhere: see `engine.run`.
    """
    experiment, say = setup.experiment, told.say
    own = {"keep": setup.config.checkpoint_keep, "say": say}
    own["fixed_by"] = lambda before: fixed_by(setup, before)
    with Folder(workdir, experiment, facts.about(setup), **own) as folder:
        for line in display.plan(setup):
            say(line)
        if ended := folder.ended:
            for line in display.done_before(ended, setup, workdir):
                say(line)
            folder.complete()
            return ended
        summary = _train(setup, folder, told, compiled)
    for line in display.result(summary, workdir):
        say(line)
    return summary


def _train(setup: Setup, folder: Folder, told: Listeners, compiled) -> Row:
    """Trains from the state of the folder; returns the summary."""
    experiment, here = setup.experiment, folder.workdir
    callbacks: list[Callback] = [folder]
    report = None
    # Signals are handled from here on, so that compiling is not cut short.
    with Signals() as signals, contextlib.ExitStack() as stack:
        shown = None if here else False
        callbacks += [signals, stack.enter_context(Bar(experiment.last, shown=shown))]
        if here:
            functions = [told.on_row] if told.on_row else []
            private = experiment.private
            if told.tensorboard:
                board = trackers.tensorboard(here.folder, folder.done(), private)
                functions.append(stack.enter_context(board))
            if told.wandb:
                sent = trackers.wandb(here.folder, flat(setup.config), private)
                functions.append(stack.enter_context(sent))
            report = ClientReport(setup, here.folder)
            callbacks += [Terminal(setup, told.say, functions), report]
        callbacks.append(RequireMoving(experiment, setup.splits.test))
        roots = setup.roots()
        result = engine.run(
            experiment, key=roots, callbacks=callbacks, compiled=compiled
        )
    more = {}
    if here and report:
        more = report.at_end(experiment.last, result.params)
        if experiment.cohort.dropout:
            report.write_participation(result.state.ledger)
        table = [*map(rows.published, here.rows)] if experiment.private else here.rows
        curves.draw(table, here.folder / PICTURE)
    return folder.finish(result, more)
