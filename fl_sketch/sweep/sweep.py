"""A sweep: a grid of configs, a program at a time, and the result of each point.

A point equals the run of its config by `launch.train`, and a point that diverges does
not stop the others. The rows of finished programs in sweep.csv are kept when the sweep
is begun again; a program that was interrupted is run from its first round.
"""

import functools
import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch.engine.loop import Watch, play
from fl_sketch.engine.recorder import Recorder, Row
from fl_sketch.models.metrics import MEASURED, score_of
from fl_sketch.run.setup import prepare
from fl_sketch.run.signals import asking
from fl_sketch.sweep import grid, plots, programs, tables
from fl_sketch.sweep.dry_run import Outline, outline, plan, require_one_table
from fl_sketch.workdir import odometer
from fl_sketch.workdir import rows as names
from fl_sketch.workdir.folder import Workdir
from fl_sketch.workdir.identity import Identity
from fl_sketch.workdir.tables import named

ROWS, SUMMARY, PICTURE = "sweep.csv", "sweep.json", "heatmap.png"
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
      how: a name of `programs.MAPS`; None: by platform.
      say: prints a line.

    Raises:
      ValueError, TypeError, FileNotFoundError: in one line, before anything runs.
      Stopped: on SIGINT, SIGTERM or SIGHUP.
    """
    axes = grid.read_axes(config, over)
    how = how or programs.default_map()
    outlines = [outline(g, data_dir) for g in grid.programs(config, axes)]
    require_one_table(outlines)
    keys, values = config.to_dict(), {axis.key: list(axis.values) for axis in axes}
    about, identity = keys | {"over": values}, _identity(outlines)
    private = any(one.private for one in outlines)  # one table has one head
    public = ("point", "diverged", *values)
    names_of = {"rows": ROWS, "summary": SUMMARY, "private": private, "public": public}
    with Workdir(workdir, about, identity, **names_of, say=say) as folder:
        for line in plan(axes, outlines, how):
            say(line)
        if config.clients_every:
            say("  note: a sweep ignores clients_every")
        done, summary = _done(outlines, folder)
        if summary:
            say(f"{workdir} already has this sweep, finished:")
        else:
            times = _run_rest(outlines, done, folder, data_dir, how, say)
            results = _results(axes, outlines, folder.rows)
            spent = odometer.facts(odometer.read(folder.folder))
            plots.heatmap(axes, folder.rows, folder.folder / PICTURE)
            grid_keys = {"config": keys, "over": values}
            summary = folder.finish(grid_keys | results | {"map": how} | times | spent)
        notes = odometer.lines(odometer.read(folder.folder))
        lines = tables.write_sweep(folder.folder, folder.rows, axes, notes)
    for line in lines:
        say(line)
    say(f"results in {workdir}")
    return summary


def _done(outlines: Sequence[Outline], folder: Workdir) -> tuple[int, Row | None]:
    """Returns how many programs are done, and the summary of a sweep that is done.

    Other rows are dropped.

    Raises:
      ValueError: for a sweep that is done without all of its rows, or if nothing counts
        what private programs released.
    """
    ends = [0, *np.cumsum([one.rows for one in outlines]).tolist()]
    done = int(np.searchsorted(ends, len(folder.rows_there()), side="right")) - 1
    folder.keep_rows(ends[done])
    counted = odometer.read(folder.folder)
    private = (one for one in outlines[:done] if one.private)
    if any(
        named(point) not in counted for one in private for point in one.group.points
    ):
        msg = (
            f"Expected {odometer.FILE} in workdir={folder.folder} to list the private "
            f"runs of {ROWS}, got one that lacks some: use another workdir."
        )
        raise ValueError(msg)
    summary = folder.summary()
    if summary and done < len(outlines):
        msg = (
            f"Expected all {ends[-1]} rows of the finished sweep in "
            f"workdir={folder.folder}, got {ends[done]}: restore {ROWS}, or use "
            "another workdir."
        )
        raise ValueError(msg)
    return done, summary


def _identity(outlines: Sequence[Outline]) -> Identity:
    """Returns what all programs are made of, the data of each by its number."""
    data = {
        f"{name} of program {number}": digest
        for number, one in enumerate(outlines, 1)
        for name, digest in one.identity.data.items()
    }
    keyed = any(one.identity.keyed for one in outlines)
    return outlines[0].identity._replace(data=data, keyed=keyed)


def _results(
    axes: Sequence[grid.Axis], outlines: Sequence[Outline], rows: Sequence[Row]
) -> Row:
    """Returns what sweep.json has of the programs and of their best points."""
    private = any(one.private for one in outlines)
    shown = ("point", "diverged", *(axis.key for axis in axes))
    last = tables.ranked(rows, axes)
    means = tables.over_seeds(last, axes) if tables.seeds_swept(axes) else []
    first = next((row for row in last if not row["diverged"]), None)
    return {
        "points": len(last),
        "programs": [o.facts | {"first_point": o.group.first} for o in outlines],
        "best": first and names.published(first, shown) if private else first,
        "best_over_seeds": next((row for row in means if not row["diverged"]), None),
        "diverged": sum(bool(row["diverged"]) for row in last),
    }


def _run_rest(
    outlines, done: int, folder: Workdir, data_dir, how: str, say: Say
) -> Row:
    """Runs the programs after the first `done`; returns what that took."""
    begin, compiling = time.perf_counter(), 0.0
    if done:
        say(f"resuming: {done} of {len(outlines)} programs are finished")
    total = sum(len(o.group.points) * o.last for o in outlines[done:])
    with (
        asking() as asked,
        tqdm(total=total, unit="round", disable=None) as bar,
    ):
        for number, one in enumerate(outlines[done:], done + 1):
            setup = prepare(one.group.config, data_dir)
            points = programs.compile_points(setup, one.group, how)
            compiling += points.compiled.seconds
            recorders = recorders_of(one)
            watch = Watch(
                ahead=_counting(folder, one),
                rounds=_moving(bar, len(one.group.points)),
                asked=asked,
            )
            told = functools.partial(_tell, folder, say, f"{number} of {len(outlines)}")
            run_points(one, points, recorders, watch, told)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "compile_seconds": compiling, "programs_kept": done}


def recorders_of(one: Outline) -> list[Recorder]:
    """Returns a recorder for each point."""
    points = len(one.group.seeds) * len(one.group.numbers)
    return [Recorder.new(one.known, one.group.config.eval_every) for _ in range(points)]


def run_points(
    one: Outline,
    points: programs.Points,
    recorders: Sequence[Recorder],
    watch: Watch,
    told: Callable[[list[Row]], None],
) -> Any:
    """Runs all points of a program; returns their last states.

    Args:
      told: receives the rows of every evaluation, one for each point.
    """

    def on_rows(rows: list[Row], speed: float) -> None:
        del speed
        told(
            [
                _of_point(one, place, row, recorders[place])
                for place, row in enumerate(rows)
            ]
        )

    watch = watch._replace(rows=on_rows)
    return play(
        points.compiled,
        points.states,
        recorders,
        (0, one.last),
        points=True,
        watch=watch,
    )


def _of_point(one: Outline, place: int, row: Row, recorder: Recorder) -> Row:
    """Returns a row of sweep.csv, with NaN where a point has diverged."""
    if recorder.diverged:
        lost = (n for n in row if n.startswith(("train_", *MEASURED)))
        row |= dict.fromkeys(lost, math.nan)
    return {
        "point": one.group.first + place,
        **one.group.points[place],
        **row,
        "epsilon": row["epsilon"],
        "delta": row.get("delta"),
        "randomness": row.get("randomness"),
        "diverged": recorder.diverged or "",
    }


def _moving(bar, points: int) -> Callable[[int, float], None]:
    """Returns what moves a bar by the rounds of all points together."""
    begun = bar.n
    return lambda done, loss: bar.update(begun + done * points - bar.n)


def _counting(folder: Workdir, one: Outline) -> Callable[[int], None]:
    """Returns what notes in the odometer how far all points of a program have come."""
    guarantee = one.known.guarantee
    if guarantee is None or not guarantee.private:
        return lambda done: None
    points = [named(point) for point in one.group.points]
    if guarantee.randomness != "simulated":  # the same noise is not drawn again
        odometer.set_apart(folder.folder, points)

    def count(done: int) -> None:
        entry = guarantee.after(done)
        odometer.note(folder.folder, dict.fromkeys(points, entry))

    count(0)
    return count


def _tell(folder: Workdir, say: Say, program: str, rows: list[Row]) -> None:
    folder.add(*rows)
    by = score_of(rows[0])
    going = [by.of(row) for row in rows if not row["diverged"]]
    lost = len(rows) - len(going)
    reach = [f"{by.title} {min(going):.4f} to {max(going):.4f}"] if going else []
    reach += [f"{lost} of {len(rows)} diverged"] if lost else []
    say(f"  program {program}, round {rows[0]['round']}: {'; '.join(reach)}")
