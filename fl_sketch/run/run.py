"""Runs a config: begins or resumes, trains, and leaves everything in a folder."""

import contextlib
import json
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch.core import files, validate
from fl_sketch.core.mappings import flat
from fl_sketch.engine import multiprocess, progress_bar, resumable
from fl_sketch.engine.loop import Watch
from fl_sketch.engine.recorder import Recorder, Row
from fl_sketch.engine.task import Task
from fl_sketch.run import client_views, display, extension
from fl_sketch.run.setup import prepare
from fl_sketch.run.signals import asking
from fl_sketch.run.task import of_setup, task_of
from fl_sketch.workdir import curves, identity, trackers
from fl_sketch.workdir.config_file import config_of
from fl_sketch.workdir.folder import Workdir
from fl_sketch.workdir.tensorboard import open_board, require_installed

PICTURE, EDGES = "curves.png", "edges.csv"
Told = Callable[[Row], None]


def run(
    config: ConfigDict,
    workdir: str,
    data_dir: str | None = None,
    *,
    tensorboard: bool = False,
    extend: bool = False,
    accept: Collection[str] = (),
    plugin: Collection[str] = (),
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
      plugin: with `extend`, the values FILE.py:NAME of the folder that may be loaded.
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
    if tensorboard:
        require_installed()
    if tracker:
        trackers.require_installed(tracker)
    for name in accept:
        validate.one_of(tuple(identity.ACCEPTED), accept=name)
    flags = {"flag --extend": str(extend), "accept": str([*accept])}
    multiprocess.require_same(lambda: flags)
    setup = prepare(config, data_dir)
    task = of_setup(setup)
    task = task._replace(
        with_noise=lambda z: task_of(config, data_dir, noise_multiplier=z)
    )
    say = say if multiprocess.is_first() else _say_nothing
    if extend:
        before = _config_before(workdir, setup.config, plugin)
        extension.require(before, setup, task, data_dir)
    with resumable.opened(workdir, task, longer=extend, accept=accept) as folder:
        for line in display.plan(setup.config, task):
            say(line)
        ended = resumable.ended_before(folder)
        if ended:
            for line in display.done_before(ended, task, workdir):
                say(line)
            if folder:
                resumable.complete(folder, task, ended["rounds"])
            return ended
        task = resumable.with_secret(folder, task)
        if folder:
            folder.become_longer()
        with _told(tracker, folder, task, on_row) as told:
            views = client_views.Views(setup, folder)
            summary = _train(task, folder, views, tensorboard, told, say)
    for line in display.result(summary, workdir):
        say(line)
    return summary


def _config_before(
    workdir: str, config: ConfigDict, plugin: Collection[str]
) -> ConfigDict:
    """Returns the config of the run in a folder, in all processes."""
    first = multiprocess.is_first()
    text = config_of(workdir, config, plugin).to_json() if first else ""
    before = config.copy_and_resolve_references()
    before.update(json.loads(multiprocess.from_first(text.encode())))
    return before


@contextlib.contextmanager
def _told(
    tracker: str, folder: Workdir | None, task: Task, on_row: Told | None
) -> Iterator[list[Told]]:
    """Yields what gets every row, in the process that has the folder."""
    told = [on_row] if on_row and folder else []
    with contextlib.ExitStack() as stack:
        if tracker and folder:
            opened = trackers.tracking(tracker, folder.folder, flat(task.config))
            told.append(stack.enter_context(opened))
        yield told


def _train(
    task: Task,
    folder: Workdir | None,
    views: client_views.Views,
    tensorboard: bool,
    told: list[Told],
    say: Callable[[str], None],
) -> Row:
    """Trains from where the folder stands; returns the summary."""
    with asking() as asked:  # from here on, so that compiling is not cut short
        progress = resumable.resumed(folder, task, say)
        compiled = task.compile(task.roots(task.secret))
        say(display.head(task))
        last = dict(folder.rows[-1]) if folder and folder.rows else {}
        views.resume(progress.done)
        listeners: list[Told] = [last.update]
        if folder:
            if tensorboard:
                board = open_board(folder.folder / "tensorboard", progress.done)
                told = [*told, board]
            edges = _edges(folder, progress.recorder)
            listeners += [edges, lambda row: say(display.row(row)), *told]
        hidden = folder is None
        bar = progress_bar.shown(
            task.last, progress.done, shown=False if hidden else None
        )
        with bar as move:
            watch = Watch(rounds=move, asked=asked, look=views.after_row)
            progress = resumable.play_on(
                task, progress, compiled, folder, told=listeners, say=say, watch=watch
            )
    seen = views.at_end(progress.done, progress.state.server.params)
    summary = resumable.summary_of(
        task, progress, last, compile_seconds=compiled.seconds, more=seen
    )
    if folder:
        if task.known.absences:
            client_views.write_participation(folder.folder, progress.recorder)
        curves.draw(folder.rows, folder.folder / PICTURE)
        summary = resumable.finish(folder, task, summary)
    return summary


def _edges(folder: Workdir, recorder: Recorder) -> Told:
    """Returns what writes the bytes over each edge, where there is no server."""
    relay = recorder.known.prices.relay

    def write(row: Row) -> None:
        del row
        if relay:
            write_edges(folder.folder, relay, int(recorder.ledger.up.sum()))

    return write


def write_edges(folder, relay, total: int) -> None:
    """Writes a row for each edge: its nodes, and the bytes over it, there and back.

    Args:
      folder: the folder of the run.
      relay: the relay of its messages.
      total: the bytes over all edges so far.
    """
    names = ("node", "neighbour", "bytes_there", "bytes_back")
    table = np.concatenate([relay.graph.edges, relay.shared_out(total)], axis=1)
    rows: list[Row] = [dict(zip(names, row, strict=True)) for row in table.tolist()]
    files.write_rows(folder / EDGES, rows)


def _say_nothing(line: str) -> None:
    del line
