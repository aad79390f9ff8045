"""A sweep: a grid of configs, a program at a time, and the result of each point.

A point equals the run of its config by `launch.train`, and a point that diverges does
not stop the others. The rows of finished programs in sweep.csv are kept when the sweep
is begun again; a program that was interrupted is run from its first round.
"""

import math
import pathlib
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch.config.privacy import require_sizes
from fl_sketch.core import validate
from fl_sketch.engine.loop import SPEED, Callback, Progress, Result
from fl_sketch.engine.recorder import Recorder, Row
from fl_sketch.models.metrics import MEASURED, score_of
from fl_sketch.run.bar import Bar
from fl_sketch.run.facts import facts_of
from fl_sketch.run.setup import roots_of
from fl_sketch.run.signals import Signals
from fl_sketch.sweep import grid, points, tables
from fl_sketch.sweep.dry_run import Program, plan, program_of, require_one_table
from fl_sketch.workdir import odometer
from fl_sketch.workdir import rows as names
from fl_sketch.workdir.folder import Workdir
from fl_sketch.workdir.identity import Identity
from fl_sketch.workdir.tables import named

ROWS, SUMMARY = "sweep.csv", "sweep.json"
Say = Callable[[str], None]


def sweep(
    config: ConfigDict,
    over: Sequence[str],
    workdir: str | pathlib.Path,
    data_dir: str | None = None,
    *,
    how: str | None = None,
    say: Say = tqdm.write,
) -> Row:
    """Runs a grid, or the rest of an earlier sweep; returns sweep.json's contents.

    Args:
      config: what the points have in common.
      over: lines "key=value,value"; the grid is their product.
      workdir: the folder of the sweep.
      data_dir: the folder of raw data sets.
      how: a name of `points.MAPS`; None: by platform.
      say: prints a line.

    Raises:
      Stopped: on SIGINT, SIGTERM or SIGHUP.
    """
    axes = grid.read_axes(config, over)
    how = how or points.default_map()
    programs = [program_of(g, data_dir) for g in grid.programs(config, axes)]
    require_one_table(programs)
    keys, values = config.to_dict(), {axis.key: list(axis.values) for axis in axes}
    about, identity = keys | {"over": values}, _identity(programs)
    private = any(one.private for one in programs)  # one table has one head
    public = ("point", "diverged", *values)
    names_of = {"rows": ROWS, "summary": SUMMARY, "private": private, "public": public}
    with Workdir(workdir, about, identity, **names_of, say=say) as folder:
        for line in plan(axes, programs, how):
            say(line)
        done, summary = _done(programs, folder)
        if summary:
            say(f"{workdir} already has this sweep, finished:")
        else:
            times = _run_rest(programs, done, folder, how, say)
            results = _results(axes, programs, folder.rows)
            spent = odometer.facts(odometer.read(folder.folder))
            grid_keys = {"config": keys, "over": values}
            summary = folder.finish(grid_keys | results | {"map": how} | times | spent)
        notes = odometer.lines(odometer.read(folder.folder))
        lines = tables.write_sweep(folder.folder, folder.rows, axes, notes)
    for line in lines:
        say(line)
    say(f"results in {workdir}")
    return summary


def _done(programs: Sequence[Program], folder: Workdir) -> tuple[int, Row | None]:
    """Returns how many programs are done, and the summary of a sweep that is done.

    Other rows are dropped.
    """
    ends = [0, *np.cumsum([one.rows for one in programs]).tolist()]
    done = int(np.searchsorted(ends, len(folder.rows_there()), side="right")) - 1
    folder.keep_rows(ends[done])
    counted = odometer.read(folder.folder)
    private = (one for one in programs[:done] if one.private)
    if any(
        named(point) not in counted for one in private for point in one.group.points
    ):
        msg = (
            f"Expected {odometer.FILE} in workdir={folder.folder} to list the private "
            f"runs of {ROWS}, got one that lacks some: use another workdir."
        )
        raise ValueError(msg)
    summary = folder.summary()
    if summary and done < len(programs):
        msg = (
            f"Expected all {ends[-1]} rows of the finished sweep in "
            f"workdir={folder.folder}, got {ends[done]}: restore {ROWS}, or use "
            "another workdir."
        )
        raise ValueError(msg)
    return done, summary


def _identity(programs: Sequence[Program]) -> Identity:
    """Returns the identity of all programs, the data of each by its number."""
    data = {
        f"{name} of program {number}": digest
        for number, one in enumerate(programs, 1)
        for name, digest in one.setup.identity.data.items()
    }
    keyed = any(one.setup.identity.keyed for one in programs)
    return programs[0].setup.identity._replace(data=data, keyed=keyed)


def _results(
    axes: Sequence[grid.Axis], programs: Sequence[Program], rows: Sequence[Row]
) -> Row:
    """Returns the entries of sweep.json on the programs and their best points."""
    private = any(one.private for one in programs)
    shown = ("point", "diverged", *(axis.key for axis in axes))
    last = tables.ranked(rows, axes)
    means = tables.over_seeds(last, axes) if tables.seeds_swept(axes) else []
    first = next((row for row in last if not row["diverged"]), None)
    return {
        "points": len(last),
        "programs": [
            facts_of(one.setup) | {"first_point": one.group.first} for one in programs
        ],
        "best": first and names.published(first, shown) if private else first,
        "best_over_seeds": next((row for row in means if not row["diverged"]), None),
        "diverged": sum(bool(row["diverged"]) for row in last),
    }


def _run_rest(
    programs: Sequence[Program], done: int, folder: Workdir, how: str, say: Say
) -> Row:
    """Runs the programs after the first `done`; returns what that took."""
    begin, compiling = time.perf_counter(), 0.0
    if done:
        say(f"resuming: {done} of {len(programs)} programs are finished")
    with Signals() as signals:
        for number, one in enumerate(programs[done:], done + 1):
            experiment, points = one.setup.experiment, one.group.points
            name = f"{number} of {len(programs)}"
            with Bar(experiment.last, runs=len(points)) as bar:
                callbacks = [_Table(folder, one, say, name), bar, signals]
                results = run_program(one, how, callbacks)
            compiling += results[0].seconds
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "compile_seconds": compiling, "programs_kept": done}


def run_program(
    one: Program, how: str | None = None, callbacks: Sequence[Callback] = ()
) -> list[Result]:
    """Runs all points of a program; returns a result for each."""
    group, setup, secrets = one.group, one.setup, None
    experiment = setup.experiment
    shares = [setup.partition(seed)[0] for seed in group.seeds]
    for own in shares:
        require_sizes(experiment.guarantee, own.sizes)
        if not group.config.client.batch:
            why = "the largest client of the config's own seed, with client.batch=0"
            most = int(own.sizes.max())
            validate.at_most(experiment.local.batch, why, examples=most)
    if one.private:
        configs = (grid.changed(group.config, point) for point in group.points)
        secrets = [roots_of(config, private=True).secret for config in configs]
    publics = map(jax.random.key, group.seeds)
    seeds = [*zip(publics, shares, strict=True)]
    options = {"secrets": secrets, "how": how, "callbacks": callbacks}
    return points.sweep(experiment, group.hyperparameters, seeds, **options)


class _Table(Callback):
    """Writes the rows of a program to sweep.csv, and what was spent to the ledger."""

    def __init__(self, folder: Workdir, one: Program, say: Say, name: str):
        self._folder, self._one, self._say, self._name = folder, one, say, name
        guarantee = one.setup.experiment.guarantee
        self._guarantee = guarantee if one.private else None
        self._points = [named(point) for point in one.group.points]
        if guarantee and one.private:
            if guarantee.randomness != "simulated":  # other noise is drawn
                odometer.set_apart(folder.folder, self._points)
            self.before_chunk(0)

    def before_chunk(self, last: int) -> None:
        if self._guarantee:
            entry = self._guarantee.after(last)
            odometer.note(self._folder.folder, dict.fromkeys(self._points, entry))

    def on_rows(self, rows: Sequence[Row], progress: Progress) -> None:
        table = rows_of(self._one, rows, progress.recorders)
        self._folder.add(*table)
        by = score_of(table[0])
        going = [by.of(row) for row in table if not row["diverged"]]
        lost = len(table) - len(going)
        reach = [f"{by.title} {min(going):.4f} to {max(going):.4f}"] if going else []
        reach += [f"{lost} of {len(table)} diverged"] if lost else []
        at = f"program {self._name}, round {table[0]['round']}"
        self._say(f"  {at}: {'; '.join(reach)}")


def rows_of(
    one: Program, rows: Sequence[Row], recorders: Sequence[Recorder]
) -> list[Row]:
    """Returns rows of sweep.csv, with NaN where a point has diverged."""
    table = []
    for place, (row, recorder) in enumerate(zip(rows, recorders, strict=True)):
        row = {name: row[name] for name in row if name != SPEED}
        if recorder.diverged:
            lost = (name for name in row if name.startswith(("train_", *MEASURED)))
            row |= dict.fromkeys(lost, math.nan)
        table.append(
            {
                "point": one.group.first + place,
                **one.group.points[place],
                **row,
                "epsilon": row["epsilon"],
                "delta": row.get("delta"),
                "randomness": row.get("randomness"),
                "diverged": recorder.diverged or "",
            }
        )
    return table
