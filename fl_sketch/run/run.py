"""Runs a config: begins or resumes, trains, and leaves everything in a folder."""

import contextlib
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch.core import validate
from fl_sketch.core.mappings import flat
from fl_sketch.engine import multiprocess, progress_bar, resumable, sealing
from fl_sketch.engine.loop import Watch
from fl_sketch.engine.recorder import Row
from fl_sketch.engine.task import Task
from fl_sketch.run import client_views, display, extension
from fl_sketch.run.setup import Setup, prepare
from fl_sketch.run.signals import asking
from fl_sketch.run.task import of_setup
from fl_sketch.workdir import config_file, curves, identity, trackers
from fl_sketch.workdir.folder import Workdir

PICTURE = "curves.png"
Told = Callable[[Row], None]


class Listeners(NamedTuple):
    """The receivers of rows: a tracker, TensorBoard, a function, and the screen."""

    tracker: str = ""
    tensorboard: bool = False
    on_row: Told | None = None
    say: Callable[[str], None] = tqdm.write

    def opened(
        self,
        stack: contextlib.ExitStack,
        folder: Workdir,
        config: dict[str, Any],
        done: int,
    ) -> list[Told]:
        """Returns what gets every row after round `done`, until the stack is left."""
        names = [self.tracker] * bool(self.tracker)
        names += [trackers.TENSORBOARD] * self.tensorboard
        opened = [trackers.tracking(n, folder.folder, config, done) for n in names]
        functions = [self.on_row] if self.on_row else []
        return functions + [stack.enter_context(tracker) for tracker in opened]


def run(
    config: ConfigDict,
    workdir: str,
    data_dir: str | None = None,
    *,
    tensorboard: bool = False,
    extend: bool = False,
    accept: Collection[str] = (),
    tracker: str = "",
    on_row: Told | None = None,
    say: Callable[[str], None] = tqdm.write,
) -> dict[str, Any]:
    """Runs a config to its end, from where an earlier run in the folder was stopped.

    Args:
      config: a config as `configs/default.py` has it.
      workdir: the folder of the run.
      data_dir: the folder of raw data sets.
      tensorboard: whether to write events for TensorBoard too.
      extend: whether a run of fewer rounds in the folder becomes this one.
      accept: what may differ from the run's beginning, of `identity.ACCEPTED`.
      tracker: the service that rows are sent to, one of `trackers.NAMES`; empty: none.
      on_row: is called with every row.
      say: prints a line.

    Returns:
      The contents of summary.json.

    Raises:
      ValueError, TypeError, FileNotFoundError: in one line, before anything runs.
      NotFinite: if the training diverges.
      Stopped: on SIGINT, SIGTERM or SIGHUP, after the progress is saved.
      checkpoint.Unreadable: if the folder's checkpoints are all damaged.
    """
    trackers.require_installed(tracker, tensorboard)
    for name in accept:
        validate.one_of(tuple(identity.ACCEPTED), accept=name)
    flags = {"flag --extend": str(extend), "accept": str([*accept])}
    multiprocess.require_same(lambda: flags)
    setup = prepare(config, data_dir)
    task, first = of_setup(setup), multiprocess.is_first()
    say = say if first else lambda line: None
    if extend:  # configs of other keys than this one's are refused with the folder
        before = str(config_file.rounds_in(workdir)) if first else ""
        before = int(multiprocess.from_first(before.encode()))
        extension.require(before, setup, task)
    told = Listeners(tracker, tensorboard, on_row, say)
    return in_folder(setup, task, workdir, told, longer=extend, accept=accept)


def in_folder(
    setup: Setup, task: Task, workdir: str, told: Listeners, **options: Any
) -> dict[str, Any]:
    """Runs a task to its end in its folder; `options` are those of `Workdir`.

    What is returned and raised is that of `run`.
    """
    with resumable.opened(workdir, task, **options) as folder:
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
        if folder:
            folder.become_longer()
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
        progress = resumable.resumed(folder, task, told.say)
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
            config = flat(task.config)
            listeners += told.opened(stack, folder, config, progress.done)
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
        curves.draw(folder.rows, folder.folder / PICTURE)
        summary = resumable.finish(folder, task, summary)
    return summary
