"""A sweep: a grid of configs, a program at a time, and what came of each point.

A point equals the run of its config by `launch.train`, and a point that diverges
does not stop the others. What a program left in sweep.csv is kept when the sweep is
begun again; a program that was interrupted is run from its first round.
"""

import functools
import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch import engine
from fl_sketch.config import cohorts
from fl_sketch.engine import ledger
from fl_sketch.engine.chunks import Ask, in_calls
from fl_sketch.run import loop
from fl_sketch.run.build import clock_of, model_of
from fl_sketch.run.loop import Row, Stopped, mean_of_finite
from fl_sketch.run.program import Program, prepare
from fl_sketch.run.signals import asking
from fl_sketch.sweep import best, grid, plots, programs, tables
from fl_sketch.sweep.best import Notes
from fl_sketch.sweep.dry_run import Outline, outline, plan, require_one_table
from fl_sketch.workdir import odometer
from fl_sketch.workdir import rows as names
from fl_sketch.workdir.folder import Files, Workdir
from fl_sketch.workdir.identity import Identity
from fl_sketch.workdir.tables import named


def sweep(
    config: ConfigDict,
    over: Sequence[str],
    workdir: str | pathlib.Path,
    data_dir: str | None = None,
    *,
    how: str | None = None,
    say: Callable[[str], None] = tqdm.write,
) -> Row:
    """Runs a grid, or what an earlier sweep left of it; returns what sweep.json holds.

    Args:
      config: what the points have in common.
      over: lines "key=value,value"; the grid is their product.
      workdir: the folder of the sweep.
      data_dir: the folder of raw data sets.
      how: a name of `programs.MAPS`; None: by platform.
      say: what prints a line.

    Raises:
      ValueError, TypeError, FileNotFoundError: in one line, before anything runs.
      Stopped: on SIGINT, SIGTERM or SIGHUP.
    """
    axes = grid.read_axes(config, over)
    how = how or programs.default_map()
    outlines = [outline(g, data_dir) for g in grid.programs(config, axes)]
    require_one_table(outlines)
    about = config.to_dict() | {"over": grid.listed(axes)}
    draw = functools.partial(plots.heatmap, axes)
    files = Files("sweep.csv", "sweep.json", "heatmap.png", draw)
    with Workdir(workdir, about, files, _identity(outlines)) as folder:
        for line in plan(axes, outlines, how):
            say(line)
        if config.clients_every or config.personal_steps:
            say("  no point looks at single clients: clients_every, personal_steps")
        folder.keep_rows(lambda rows: _rows_of(outlines[: _finished(outlines, rows)]))
        _require_counted(outlines[: _finished(outlines, folder.rows)], folder.folder)
        found = folder.summary()
        _require_all_rows(found, outlines, folder)
        if found:
            say(f"{workdir} holds this sweep already, done:")
        else:
            times = _run_rest(outlines, axes, folder, data_dir, how, say)
            results = summary_of(config, axes, outlines, folder.rows)
            _, given = tables.totals(odometer.read(folder.folder))
            found = folder.finish({**results, "map": how, **times, **given})
        notes, _ = tables.totals(odometer.read(folder.folder))
        lines = tables.write_sweep(folder.folder, folder.rows, axes, notes)
    for line in lines:
        say(line)
    if (folder.folder / best.FOLDER).is_dir():
        say(
            "its best point goes on by: python -m launch.train "
            f"--workdir={folder.folder / best.FOLDER} --extend=ROUNDS"
        )
    say(f"results in {workdir}")
    return found


def _require_all_rows(found: Row | None, outlines, folder: Workdir) -> None:
    """Raises for a sweep that is done, and whose rows are not all there."""
    there, whole = len(folder.rows), _rows_of(outlines)
    if found and there < whole:
        msg = (
            f"Expected all rows of the sweep in workdir={folder.folder}, which is "
            f"done, got {there} of {whole}: put them back, or take another workdir."
        )
        raise ValueError(msg)


def _identity(outlines: Sequence[Outline]) -> Identity:
    """Returns what all programs are made of, the data of each by its number."""
    data = {
        f"{name} of program {number}": own
        for number, one in enumerate(outlines, 1)
        for name, own in one.identity.data.items()
    }
    return outlines[0].identity._replace(data=data)


def summary_of(
    config: ConfigDict,
    axes: Sequence[grid.Axis],
    outlines: Sequence[Outline],
    rows: Sequence[Row],
) -> Row:
    """Returns the sweep.json of `config`, `axes`, `outlines` and the best `rows`."""
    last = tables.ranked(rows, axes)
    means = tables.over_seeds(last, axes) if tables.seeds_swept(axes) else []
    found = next((row for row in last if not row["diverged"]), None)
    return {
        "config": config.to_dict(),
        "over": grid.listed(axes),
        "points": len(last),
        "programs": [o.facts | {"first_point": o.group.first} for o in outlines],
        "best": found and names.marked(found, any(o.private for o in outlines)),
        "best_over_seeds": next((row for row in means if not row["diverged"]), None),
        "diverged": sum(bool(row["diverged"]) for row in last),
    }


def _finished(outlines: Sequence[Outline], rows: Sequence[Row]) -> int:
    """Returns how many programs have all their rows."""
    ends = np.cumsum([o.rows for o in outlines])
    return int(np.searchsorted(ends, len(rows), side="right"))


def _require_counted(kept: Sequence[Outline], folder: pathlib.Path) -> None:
    """Raises if private programs have rows, and nothing counts what they released."""
    counted = {one.name for one in odometer.read(folder)}
    points = (point for one in kept if one.private for point in one.group.points)
    if any(named(point) not in counted for point in points):
        msg = (
            f"Expected {odometer.FILE} in {folder}, which counts what its rows gave "
            "away, and it does not: take another workdir."
        )
        raise ValueError(msg)


def _rows_of(outlines: Sequence[Outline]) -> int:
    return sum(o.rows for o in outlines)


def _run_rest(outlines, axes, folder: Workdir, data_dir, how: str, say) -> Row:
    """Runs the programs that have no rows yet; returns what that took."""
    kept, begin, compiling = _finished(outlines, folder.rows), time.perf_counter(), 0.0
    hidden = any(one.private for one in outlines)  # one table has one head
    watched = list(dict.fromkeys(n for one in outlines for n in one.facts["noised"]))
    if any(cohorts.messy(one.group.config) for one in outlines):
        watched += loop.MESSY
    if kept:
        say(f"keeping the rows of {kept} of {len(outlines)} programs")
    total = sum(len(o.group.points) * o.last for o in outlines[kept:])
    with (
        asking() as asked,
        tqdm(total=total, unit="round", disable=None) as bar,
    ):
        for number, one in enumerate(outlines[kept:], kept + 1):
            which = f"{number} of {len(outlines)}"
            compiling += _run_one(
                one,
                prepare(one.group.config, data_dir),
                how,
                functools.partial(_keep_best, folder, axes, one),
                lambda rows: [_dressed(row, hidden, watched) for row in rows],
                functools.partial(_tell, folder, say, which),
                rounds=bar.update,
                stop=lambda: asked() == Ask.STOP,
                ahead=_counting(folder, one),
            )
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "compile_seconds": compiling, "programs_kept": kept}


def _run_one(
    one: Outline, program: Program, how: str, keep, dressed, tell, **told
) -> float:
    """Runs a program, of which nothing stays on the devices; returns compile time.

    Its last rows are written when the best point is kept: who finds them finds it.
    """
    points, last = programs.compile_points(program, one.group, how), []

    def rows(found: list[Row]) -> None:
        if found[0]["round"] == one.last:
            last.extend(dressed(found))
        else:
            tell(dressed(found))

    clocks = _clocks(program, one.group)
    states, notes = run(one, points, rows=rows, clocks=clocks, **told)
    about = model_of(one.group.config, program)
    keep(last, best.Ended(one.group, states, notes, about, program.identity))
    tell(last)
    return points.seconds


def _clocks(program: Program, group: grid.Group) -> dict[int, loop.Clock | None]:
    """Returns the clock of each seed: points of one seed have the same cohorts."""
    keys = {seed: functools.partial(jax.random.key, seed) for seed in group.seeds}
    return {seed: clock_of(program, key) for seed, key in keys.items()}


def _keep_best(
    folder: Workdir, axes, one: Outline, last: list[Row], ended: best.Ended
) -> None:
    """Keeps the best point so far to go on from, but for one that is private.

    The secrets of private points are gone, and nobody's rounds come again.
    """
    if not one.private:
        rows = [*folder.rows, *last]
        best.keep(folder.folder, rows, axes, ended)


def _counting(folder: Workdir, one: Outline) -> Callable[[int], None]:
    """Returns what notes in the odometer how far all points of a program have come."""
    if not ((promise := one.guarantee) and promise.private):
        return lambda done: None
    names = [named(point) for point in one.group.points]
    if promise.randomness != "simulated":  # nor is the same noise drawn again
        odometer.set_apart(folder.folder, names)

    def count(done: int) -> None:
        own = [odometer.entry(name, promise, done) for name in names]
        odometer.note(folder.folder, own)

    count(0)
    return count


def _dressed(row: Row, hidden: bool, watched) -> Row:
    """Returns a row as the file has it, with all columns that any program has."""
    return names.marked(row | {name: row.get(name, "") for name in watched}, hidden)


def _tell(folder: Workdir, say, program: str, rows: list[Row]) -> None:
    folder.add(*rows)
    by = names.score_of(rows[0])
    going = [by.of(row) for row in rows if not row["diverged"]]
    lost = len(rows) - len(going)
    reach = [f"{by.title} {min(going):.4f} to {max(going):.4f}"] if going else []
    reach += [f"{lost} of {len(rows)} diverged"] if lost else []
    say(f"  program {program}, round {rows[0]['round']}: {'; '.join(reach)}")


def run(
    outline: Outline,
    points: programs.Mapped,
    *,
    rows: Callable[[list[Row]], None],
    rounds: Callable[[int], None],
    stop: Callable[[], bool],
    ahead: Callable[[int], None] = lambda number: None,
    clocks: Mapping[int, loop.Clock | None] = {},  # noqa: B006 - nobody writes to it
) -> tuple[engine.State, Notes]:
    """Runs all points of a program; returns their last states and what was noted.

    Args:
      outline: the outline of the program.
      points: its states, used up, and functions.
      rows: what is told of every evaluation, a row for each point.
      rounds: what is told how many more rounds are done, of all points together.
      stop: what is asked after every call whether to raise `Stopped`.
      ahead: what is told before every call up to which round it will play.
      clocks: the clock of each seed, if there are any.
    """
    config, count = outline.group.config, len(outline.group.points)
    clients, noised = config.data.clients, outline.facts["noised"]
    notes = Notes.empty(count, clients, config.eval_every, noised)
    states = points.states
    for call in in_calls(
        points.advance,
        states,
        (0, outline.last),
        every=(config.eval_every,),
        ahead=ahead,
    ):
        states, done = call.state, call.done
        for one in range(done - call.first):
            report = jax.tree.map(lambda leaf, one=one: leaf[:, one], call.reports)
            number, private = call.first + one, outline.private
            _note(notes, outline.prices, number, report, private=private)
        rounds((done - call.first) * count)
        if done % config.eval_every == 0 or done == outline.last:
            rows(_rows(outline, done, notes, points.evaluate(states), clocks))
            between = done % config.eval_every != 0  # as `loop.train` has it
            for kept in () if between else (notes.losses, *notes.noised.values()):
                kept[:] = np.nan
        if stop() and done < outline.last:
            raise Stopped(done)
    return states, notes


def _note(notes: Notes, prices, number: int, report, *, private: bool) -> None:
    """Notes one round of all points."""
    shown = report.simulator_only
    for place, book in enumerate(notes.books):
        own = jax.tree.map(lambda leaf, place=place: leaf[place], shown)
        ledger.record(book, prices, number, own)
    seen = shown.answered.any(axis=1)
    losses = np.where(seen, shown.diagnostics["loss"], np.nan)
    place = number % notes.losses.shape[1]
    notes.losses[:, place] = losses
    for name, kept in notes.noised.items():
        kept[:, place] = report.released[name]
    if not private:  # what clients measured decides nothing where they are protected
        fresh = seen & ~np.isfinite(losses) & (notes.diverged == 0)
        notes.diverged[fresh] = number + 1


def _rows(outline: Outline, done: int, notes: Notes, found, clocks) -> list[Row]:
    group, guarantee = outline.group, outline.guarantee
    fresh = ~np.isfinite(found["test_loss"]) & (notes.diverged == 0)
    notes.diverged[fresh] = done
    given = dict.fromkeys(("epsilon", "delta", "randomness"))
    if guarantee and guarantee.private:
        spent = guarantee.epsilon(done)
        given = dict(
            zip(given, (spent, guarantee.delta, guarantee.randomness), strict=True)
        )
    found_rows = []
    for place, (point, book) in enumerate(zip(group.points, notes.books, strict=True)):
        numbers = {
            "train_loss": mean_of_finite(notes.losses[place]),
            **{name: float(values[place]) for name, values in found.items()},
        }
        if notes.diverged[place]:
            numbers = dict.fromkeys(numbers, math.nan)
        row = {
            "point": group.first + place,
            **point,
            "round": done,
            **numbers,
            "bytes_up_total": int(book.up.sum()),
            "bytes_down_total": int(book.down.sum()),
            **loop.messy(group.config, done, book, clocks.get(_seed(group, place))),
            **given,
            "diverged": int(notes.diverged[place]) or "",
            **{
                name: mean_of_finite(kept[place]) for name, kept in notes.noised.items()
            },
        }
        found_rows.append(row)
    return found_rows


def _seed(group: grid.Group, place: int) -> int:
    """Returns the seed of a point."""
    return group.seeds[place // len(group.numbers)]
