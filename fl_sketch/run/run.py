"""Runs a config: begins or resumes, trains, and leaves everything in a folder."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch.config import arguments
from fl_sketch.core.mappings import flat
from fl_sketch.engine import multiprocess, progress_bar, resumable, sealing
from fl_sketch.engine.loop import Watch
from fl_sketch.engine.recorder import Row
from fl_sketch.engine.task import Task
from fl_sketch.run import client_views, curves, display
from fl_sketch.run.setup import Setup, prepare
from fl_sketch.run.signals import asking
from fl_sketch.run.task import of_setup
from fl_sketch.workdir import rows, trackers
from fl_sketch.workdir.folder import Workdir

PICTURE = "curves.png"
Told = Callable[[Row], None]


class Listeners(NamedTuple):
    """The receivers of rows: TensorBoard, wandb, a function, and the screen."""

    tensorboard: bool = False
    wandb: bool = False
    on_row: Told | None = None
    say: Callable[[str], None] = tqdm.write

    def opened(
        self, stack: contextlib.ExitStack, folder: Workdir, task: Task, done: int
    ) -> list[Told]:
        """Returns what gets every row after round `done`, until the stack is left."""
        functions, place = [self.on_row] if self.on_row else [], folder.folder
        if self.tensorboard:
            board = trackers.tensorboard(place, done, task.private)
            functions.append(stack.enter_context(board))
        if self.wandb:
            sent = trackers.wandb(place, flat(task.config), task.private)
            functions.append(stack.enter_context(sent))
        return functions


def run(
    config: ConfigDict,
    workdir: str,
    data_dir: str | None = None,
    *,
    tensorboard: bool = False,
    wandb: bool = False,
    on_row: Told | None = None,
    say: Callable[[str], None] = tqdm.write,
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
    setup = prepare(config, data_dir)
    task, first = of_setup(setup), multiprocess.is_first()
    say = say if first else lambda line: None
    told = Listeners(tensorboard, wandb, on_row, say)
    return in_folder(setup, task, workdir, told)


def fixed_by(setup: Setup, task: Task, before: int) -> str:
    """Returns what of a run of `before` rounds depends on their number; empty: nothing.

    With more rounds it would then be another run from the first round on.
    """
    for key in arguments.by_length(setup.config):
        return key
    shorter = of_setup(setup.changed("rounds", before).with_noise())
    if task.private:
        assert task.known.guarantee and shorter.known.guarantee
        if setup.config.privacy.randomness == "seed":
            return "privacy.randomness=seed"
        z = shorter.known.guarantee.noise_multiplier
        if z != task.known.guarantee.noise_multiplier:
            return "privacy.target_epsilon, which chose the noise"
    if task.facts["download"] != shorter.facts["download"]:
        return f"download={setup.config.download}"
    return ""


def in_folder(
    setup: Setup, task: Task, workdir: str, told: Listeners
) -> dict[str, Any]:
    """Runs a task to its end in its folder; returns and raises what `run` does."""
    fixed = functools.partial(fixed_by, setup, task)
    with resumable.opened(workdir, task, fixed_by=fixed, say=told.say) as folder:
        for line in display.plan(setup.config, task):
            told.say(line)
        ended = resumable.ended_before(folder)
        if ended:
            for line in display.done_before(ended, task, workdir):
                told.say(line)
            if folder:
                resumable.complete(folder, task, ended["rounds"])
            return ended
        task = sealing.with_secret(folder, task)
        views = client_views.Views(setup, folder)
        summary = _train(task, folder, views, told)
    for line in display.result(summary, workdir):
        told.say(line)
    return summary


def _train(
    task: Task, folder: Workdir | None, views: client_views.Views, told: Listeners
) -> Row:
    """Trains from the state of the folder; returns the summary."""
    # Signals are handled from here on, so that compiling is not cut short.
    with asking() as asked, contextlib.ExitStack() as stack:
        progress = resumable.resumed(folder, task)
        if progress.done:
            told.say(f"resuming after round {progress.done}")
        seal = sealing.roots_by_program(folder, task)
        compiled = task.compile(task.roots(task.secret), seal)
        resumable.restore(folder, task, progress)
        told.say(display.head(task))
        last = dict(folder.rows[-1]) if folder and folder.rows else {}
        views.resume(progress.done)
        listeners: list[Told] = [last.update]
        if folder:
            listeners.append(lambda row: told.say(display.row(row)))
            listeners += told.opened(stack, folder, task, progress.done)
        shown = None if folder else False
        bar = progress_bar.shown(task.last, progress.done, shown=shown)
        watch = Watch(
            rounds=stack.enter_context(bar), asked=asked, look=views.after_row
        )
        progress = resumable.play_on(
            task, progress, compiled, folder, told=listeners, say=told.say, watch=watch
        )
    seen = views.at_end(progress.done, progress.state.server.params)
    summary = resumable.summary_of(
        task, progress, last, compile_seconds=compiled.seconds, more=seen
    )
    if folder:
        if task.known.absences:
            client_views.write_participation(
                folder.folder, progress.recorder, views.names
            )
        shown = map(rows.published, folder.rows) if task.private else folder.rows
        curves.draw([*shown], folder.folder / PICTURE)
        summary = resumable.finish(folder, task, summary)
    return summary
