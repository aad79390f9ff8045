"""Methods side by side: each tuned on its own grid, then run with several seeds.

A comparison is as good as its weakest baseline. Every method gets a grid, which is
searched with a seed of its own; what is reported are other seeds of the best point.
Both are sweeps, so that what is done is kept when a comparison is begun again.
"""

import inspect
import math
import os
import pathlib
import re
import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch.config import parse, privacy
from fl_sketch.config.build import metrics_of
from fl_sketch.core import files, validate
from fl_sketch.models.metrics import METRICS
from fl_sketch.privacy.composition import Trials
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.sweep import grid, pictures, selection, separate_runs, standings
from fl_sketch.sweep.extend_grid import beyond
from fl_sketch.sweep.grid import shown
from fl_sketch.sweep.selection import select
from fl_sketch.sweep.standings import Row
from fl_sketch.sweep.sweep import sweep
from fl_sketch.workdir import odometer
from fl_sketch.workdir.rows import CHOSEN, Score, score_of


class Method(NamedTuple):
    """One of the methods compared.

    Attributes:
      keys: the keys of the config and their values, over those of the base.
      tune: keys and the values that they are tuned over; the grid is the product.
      whole: whether it is tuned in as many rounds as are reported, whatever the others
        are: for methods that may diverge late.
    """

    keys: Mapping[str, Any]
    tune: Mapping[str, Sequence[Any]] = {}
    whole: bool = False


class Comparison(NamedTuple):
    """Methods, and what they have in common.

    Attributes:
      base: the config.
      methods: the methods by name; the first is the one that others are measured by.
      seeds: the seeds that are reported.
      tuning_seed: the seed of the search.
      tuning_rounds: the number of rounds of the search; 0: as many as are reported. A
        private search has the noise of the whole run.
      tuning_keys: keys of the config for the search alone: another data set, say,
        with data.public=True if nobody has to be protected there.
      last: the number of evaluations that the mean counts, the last ones.
      apart: whether the seeds are runs in folders of their own rather than a sweep: for
        runs of hours, which go on where they were stopped, keep their checkpoints, and
        to which seeds can be added later. Not for private methods.
      widen: the number of values that a grid may grow by, one by one, while its best
        point is at an end of it.
    """

    base: ConfigDict
    methods: Mapping[str, Method]
    seeds: Sequence[int] = (0, 1, 2)
    tuning_seed: int = 100
    tuning_rounds: int = 0
    tuning_keys: Mapping[str, Any] = {}
    last: int = 1
    apart: bool = False
    widen: int = 0


def load(config: str, maker: str = "get_comparison") -> Any:
    """Returns what a file makes, a comparison unless told, by the name after a colon.

    Args:
      config: the path of a Python file with `maker`, as in "configs/compare_das.py";
        after a colon, what that function is given.
      maker: the name of the function.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: in one line, for a file of another kind, or one that does not run.
    """
    path, _, which = config.partition(":")
    if not os.path.isfile(path):
        msg = f"Expected --config to name a file, got {path}."
        raise FileNotFoundError(msg)
    if not path.endswith(".py"):
        msg = f"Expected --config to name a Python file, got {path}."
        raise ValueError(msg)
    try:
        make = runpy.run_path(path).get(maker)
    except (SyntaxError, ImportError, NameError) as error:
        msg = f"Expected {path} to run, got {type(error).__name__}: {error}."
        raise ValueError(msg) from None
    if make is None:
        msg = f"Expected a file with {maker}, got {path}: see launch.train."
        raise ValueError(msg)
    if which and not inspect.signature(make).parameters:
        msg = f"Expected {path} alone, got {config}."
        raise ValueError(msg)
    return make(which) if which else make()


def run(
    comparison: Comparison,
    workdir: str | os.PathLike,
    data_dir: str | None = None,
    *,
    settings: Sequence[str] = (),
    only: Sequence[str] = (),
    trials: Trials | None = None,
    say: Callable[[str], None] = tqdm.write,
) -> list[Row]:
    """Runs a comparison, or what an earlier one in the folder left of it.

    Args:
      comparison: what is compared.
      workdir: the folder that gets a folder for each method, search.csv with the score
        of every point of all grids, comparison.csv with all evaluations, standings.csv,
        standings.md and comparison.png.
      data_dir: the folder of raw data sets.
      settings: lines "key=value" for the config of every method.
      only: names of methods; empty: all.
      trials: the number of runs that a private selection makes of each private method
        that is tuned, in place of a search and of seeds; None: no private selection.
      say: what prints a line.

    Returns:
      A row for each method, in their order.

    Raises:
      ValueError, TypeError, FileNotFoundError: in one line.
      Stopped: on SIGINT, SIGTERM or SIGHUP.
    """
    folder = files.writable_folder(workdir)
    for name in only:
        validate.one_of(tuple(comparison.methods), only=name)
    chosen = only or tuple(comparison.methods)
    configs = {
        name: config_of(comparison, comparison.methods[name], settings)
        for name in chosen
    }
    _require_own(folder)
    _require_one_metric(configs)
    privacy.require_one_unit(configs.values())
    if comparison.apart:
        separate_runs.require_public(configs)
    _require_sound(comparison, configs)
    planned = _planned(comparison, configs, trials, data_dir)
    searched, evaluations, rows = [], [], []
    with tqdm(total=2 * len(configs), unit="sweep", disable=None) as bar:
        doing = _Doing(comparison, planned, folder, data_dir, say, bar.update)
        for number, (name, config) in enumerate(configs.items(), 1):
            say(f"{name} ({number} of {len(configs)})")
            best, found, points = doing.tuned_and_run(name, config)
            searched += [{"method": name, **point} for point in points]
            evaluations += [{"method": name, **row} for row in found]
            rows.append(standings.row(name, best, found, comparison.last))
            say("  " + standings.said(rows[-1]))
    if searched:
        files.write_rows(folder / "search.csv", searched)
    released = odometer.below(folder, selection.FOLDER)
    if released:
        odometer.write(folder, released)
    given = odometer.lines(released)
    standings.write(folder, rows, evaluations, comparison.last, given)
    for line in (*standings.table(rows), *given):
        say(line)
    say(f"results in {workdir}")
    return rows


class _Doing(NamedTuple):
    """What the work on a method needs beside its config."""

    comparison: Comparison
    planned: Mapping[str, Guarantee]
    folder: pathlib.Path
    data_dir: str | None
    say: Callable[[str], None]
    move: Callable[[int], Any]

    def tuned_and_run(self, name: str, config: ConfigDict):
        """Returns the best keys of a method, its evaluations, and what was searched."""
        method, own = self.comparison.methods[name], folder_of(self.folder, name)
        tune, last, say = method.tune, self.comparison.last, self.say
        if name in self.planned:
            plan = self.planned[name]
            best, found = select(
                config, tune, plan, own, self.data_dir, last=last, say=say
            )
            self.move(2)
            return best, found, []
        best, points = _tuned(
            self.comparison, method, config, own / "tuning", self.data_dir, say
        )
        self.move(1)
        config.update_from_flattened_dict(best)
        seeds, folder = self.comparison.seeds, own / "seeds"
        if self.comparison.apart:
            found = separate_runs.evaluations(config, seeds, folder, self.data_dir)
        else:
            over = [f"seed={','.join(map(str, seeds))}"]
            sweep(config, over, folder, self.data_dir, say=_nothing)
            found = files.read_rows(folder / "sweep.csv")
        self.move(1)
        return best, found, points


def _require_own(folder: pathlib.Path) -> None:
    """Raises for a folder in which a run was counted that is none of a comparison's."""
    if any("/" not in name for name in odometer.read(folder)):
        msg = (
            f"Expected workdir to be that of a comparison, got {folder}, whose "
            f"{odometer.FILE} counts a run: take another workdir."
        )
        raise ValueError(msg)


def _require_one_metric(configs: Mapping[str, ConfigDict]) -> None:
    """Raises for methods that are measured by unlike things, which no table ranks."""
    first = {name: metrics_of(config)[0] for name, config in configs.items()}
    if len({*first.values()}) > 1:
        found = ", ".join(f"{metric} of {name}" for name, metric in first.items())
        msg = f"Expected one metric that comes first in all methods, got {found}: say "
        raise ValueError(msg + "model.metrics=NAME.")


def _require_sound(comparison: Comparison, configs: Mapping[str, ConfigDict]) -> None:
    """Raises for what can be told of the last method before the first one trains."""
    for name, config in configs.items():
        tune = comparison.methods[name].tune
        first = config.copy_and_resolve_references()
        first.update_from_flattened_dict({key: tune[key][0] for key in tune})
        try:
            parse.check(first)
            privacy.check(first)
        except (ValueError, TypeError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            msg = f"{name}: {error}"
            raise kind(msg) from None


def _planned(
    comparison, configs, trials: Trials | None, data_dir
) -> dict[str, Guarantee]:
    """Returns the methods of which a random number of runs is made, and what it costs.

    Raises:
      ValueError: if that is asked for, and none is private, or one cannot be counted.
    """
    if trials is None:
        return {}
    tuned = [name for name in configs if comparison.methods[name].tune]
    found = [name for name in tuned if privacy.is_noisy(configs[name])]
    if not found:
        msg = "Expected a private method that is tuned, for private trials, got none."
        raise ValueError(msg)
    return {
        name: selection.planned(
            configs[name], comparison.methods[name].tune, trials, data_dir
        )
        for name in found
    }


def config_of(
    comparison: Comparison, method: Method, settings: Sequence[str]
) -> ConfigDict:
    """Returns a method's config before it is tuned.

    Args:
      comparison: the comparison, whose base the config starts from.
      method: the method, whose keys come next.
      settings: lines "key=value", which come last.

    Raises:
      ValueError: for a line that is none.
    """
    config = comparison.base.copy_and_resolve_references()
    config.update_from_flattened_dict(dict(method.keys))
    for axis in grid.read_axes(config, settings, flag="set") if settings else ():
        config.update_from_flattened_dict({axis.key: axis.values[0]})
    return config


def _tuned(
    comparison, method, config, folder, data_dir, say
) -> tuple[dict[str, Any], list[Row]]:
    """Returns the keys of a method's best point, and all points with their scores."""
    if not method.tune:
        return {}, []
    config, tune = config.copy_and_resolve_references(), dict(method.tune)
    config.update_from_flattened_dict(dict(comparison.tuning_keys))
    if comparison.tuning_rounds and not method.whole:
        # The noise of fewer rounds would be less, and so would what it costs.
        config.privacy.planned_rounds = config.privacy.planned_rounds or config.rounds
        config.rounds = min(config.rounds, comparison.tuning_rounds)
    config.seed = comparison.tuning_seed
    points = _searched(config, tune, folder, data_dir, comparison.last)
    for number in range(comparison.widen):
        more = beyond(tune, _best(points, tune, _nothing))
        if more is None:
            break
        key, value = more
        tune[key] = (*tune[key], value)
        own = {**tune, key: (value,)}
        wider = folder.with_name(f"{folder.name}_{number + 1}")
        points += _searched(config, own, wider, data_dir, comparison.last)
    best = _best(points, tune, say)
    if more := beyond(tune, best):
        say(f"  which is at an end of its grid: {more[0]}={shown(more[1])} is next")
    return best, points


def _searched(config, tune, folder, data_dir, last: int) -> list[Row]:
    """Returns every point of a grid, and its score by the metric's name."""
    over = [f"{key}={','.join(map(str, v))}" for key, v in tune.items()]
    over.append(f"seed={config.seed}")
    sweep(config, over, folder, data_dir, say=_nothing)
    points = pictures.by_point(files.read_rows(folder / "sweep.csv"))
    return [
        {
            **{k: grid.typed(rows[0][k], v[0]) for k, v in tune.items()},
            score_of(rows[0], CHOSEN).name: standings.score(rows, last, CHOSEN),
            **standings.given_away([rows[-1]]),
        }
        for rows in points.values()
    ]


def _best(points: Sequence[Row], tune: Iterable[str], say) -> dict[str, Any]:
    """Returns the keys of the best point, the first where all diverged."""
    by = Score("", next(name for name in points[0] if name in METRICS))
    found = [point for point in points if math.isfinite(point[by.name])]
    if not found:
        say(f"  all {len(points)} points of its grid diverged")
    best = max(found or points[:1], key=lambda point: by.worth(point[by.name]))
    chosen = {key: best[key] for key in tune}
    said = ", ".join(f"{key}={shown(value)}" for key, value in chosen.items())
    say(f"  best of {len(points)}: {said}, {best[by.name]:.4f}")
    return chosen


def folder_of(workdir: str | os.PathLike, name: str) -> pathlib.Path:
    """Returns the folder of a method in that of a comparison.

    Args:
      workdir: the folder of the comparison.
      name: the name of the method.
    """
    return pathlib.Path(workdir) / re.sub(r"\W+", "_", name).strip("_").lower()


def _nothing(line: str) -> None:
    del line
