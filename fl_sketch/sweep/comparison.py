"""Comparisons: each method is tuned on its own grid and run with several seeds.

A comparison is as good as its weakest baseline. So every method has a grid, which is
searched with a separate seed. The reported runs have other seeds. Searches and seeds
are sweeps, so an interrupted comparison keeps finished runs.
"""

import inspect
import os
import pathlib
import re
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch.config import parse, privacy
from fl_sketch.config.build import metrics_of
from fl_sketch.core import files, validate
from fl_sketch.engine.loop import NotFinite
from fl_sketch.run.run import run as run_once
from fl_sketch.run.setup import prepare
from fl_sketch.sweep import grid, plots, tables
from fl_sketch.sweep.sweep import sweep
from fl_sketch.sweep.tables import Row
from fl_sketch.sweep.tuning import Tuning
from fl_sketch.workdir import odometer
from fl_sketch.workdir import rows as rows_of
from fl_sketch.workdir.tables import markdown


class Method(NamedTuple):
    """One of the methods compared: keys of its config, over those of the base.

    It is tuned over the product of the values in `tune`, and if it may diverge late in
    the `whole` number of rounds, whatever the others are.
    """

    keys: Mapping[str, Any]
    tune: Mapping[str, Sequence[Any]] = {}
    whole: bool = False


class Comparison(NamedTuple):
    """Methods, and what they have in common.

    Attributes:
      base: the config.
      methods: the methods by name; the first is the baseline.
      seeds: the seeds that are reported.
      tuning_seed: the seed of the search.
      tuning_rounds: the number of rounds of the search; 0: as many as are reported. A
        private search has the noise of the whole run.
      last: the number of last evaluations over which the score is averaged.
      apart: whether seeds are separate runs and not a sweep. This is for runs of hours:
        they can be resumed, keep their checkpoints, and seeds can be added later. Not
        for private methods.
      widen: the number of values by which a grid may grow while its best point is at an
        end.
    """

    base: ConfigDict
    methods: Mapping[str, Method]
    seeds: Sequence[int] = (0, 1, 2)
    tuning_seed: int = 100
    tuning_rounds: int = 0
    last: int = 1
    apart: bool = False
    widen: int = 0


def load(config: str, maker: str = "get_comparison") -> Any:
    """Returns the result of the function `maker` of a Python file.

    `config` is the path of the file, as in "configs/compare_das.py"; after a colon
    there is the argument of the function.
    """
    path, _, which = config.partition(":")
    if not os.path.isfile(path):
        msg = f"Expected --config to name a file, got {path}."
        raise FileNotFoundError(msg)
    try:
        make = runpy.run_path(path).get(maker)
    except (SyntaxError, ImportError, NameError) as error:
        msg = f"Expected {path} to run, got {type(error).__name__}: {error}."
        raise ValueError(msg) from None
    if make is None:
        msg = f"Expected a file with {maker}, got {path}: use launch.train."
        raise ValueError(msg)
    if which and not inspect.signature(make).parameters:
        msg = f"Expected {path} without an argument, got {config}."
        raise ValueError(msg)
    return make(which) if which else make()


def run(
    comparison: Comparison,
    workdir: str | os.PathLike,
    data_dir: str | None = None,
    *,
    settings: Sequence[str] = (),
    only: Sequence[str] = (),
    say: Callable[[str], None] = tqdm.write,
) -> list[Row]:
    """Runs a comparison, or what an earlier one left of it; returns its standings.

    Args:
      comparison: the methods.
      workdir: the folder of results. It gets a folder for each method, search.csv with
        every point of all grids, comparison.csv with all reported evaluations,
        standings.csv, standings.md and comparison.png. If a method is private,
        comparison.csv and standings.csv are in the folder simulator/.
      data_dir: the folder of raw data sets.
      settings: lines "key=value" for the config of every method.
      only: names of methods; empty: all.
      say: what prints a line.
    """
    folder = files.writable_folder(workdir)
    for name in only:
        validate.one_of(tuple(comparison.methods), only=name)
    configs = {
        name: config_of(comparison, comparison.methods[name], settings)
        for name in only or comparison.methods
    }
    _check(comparison, configs, folder)
    searched, evaluations, standings = [], [], []
    methods = tqdm(configs.items(), unit="method", disable=None)
    for number, (name, config) in enumerate(methods, 1):
        say(f"{name} ({number} of {len(configs)})")
        method, place = comparison.methods[name], folder_of(folder, name)
        best, rows, points = _tune_and_run(
            comparison, method, config, place, data_dir, say
        )
        searched += [{"method": name, **point} for point in points]
        evaluations += [{"method": name, **row} for row in rows]
        standings.append(tables.standings_row(name, best, rows, comparison.last))
        say("  " + markdown(tables.standings_table(standings[-1:]))[-1])
    if searched:
        files.write_rows(folder / "search.csv", searched)
    released = odometer.below(folder)
    if released:
        odometer.write(folder, released)
    notes = odometer.lines(released)
    tables.write_standings(folder, standings, evaluations, comparison.last, notes)
    plots.draw(evaluations, folder / "comparison.png")
    for line in (*markdown(tables.standings_table(standings)), *notes):
        say(line)
    say(f"results in {workdir}")
    return standings


def side_by_side(
    configs: Mapping[str, ConfigDict],
    workdir: str | os.PathLike,
    data_dir: str | None = None,
    *,
    say: Callable[[str], None] = tqdm.write,
) -> dict[str, dict[str, Any]]:
    """Runs every config in its own folder of `workdir`; returns the summaries by name.

    It prints a table, in which the first run is compared with the others.
    """
    summaries = {}
    for name, config in configs.items():
        place = str(folder_of(workdir, name))
        summaries[name] = run_once(config, place, data_dir, say=say)
        say("")
    for line in tables.side_by_side(summaries):
        say(line)
    return summaries


def config_of(
    comparison: Comparison, method: Method, settings: Sequence[str]
) -> ConfigDict:
    """Returns a method's config before it is tuned.

    The keys of the method replace those of the base, and `settings`, lines "key=value",
    replace both.
    """
    config = grid.changed(comparison.base, method.keys)
    axes = grid.read_axes(config, settings, flag="set") if settings else ()
    return grid.changed(config, {axis.key: axis.values[0] for axis in axes})


def folder_of(workdir: str | os.PathLike, name: str) -> pathlib.Path:
    """Returns the folder of the method `name` in the folder of a comparison."""
    return pathlib.Path(workdir) / re.sub(r"\W+", "_", name).strip("_").lower()


def _tune_and_run(
    comparison: Comparison, method: Method, config, folder, data_dir, say
) -> tuple[dict[str, Any], list[Row], list[Row]]:
    """Returns the best keys, the evaluations, and the points of the search."""
    best, points = {}, []
    if method.tune:
        searched = _for_search(comparison, method, config, data_dir)
        tuning = Tuning(searched, method.tune, folder, data_dir, comparison.last, say)
        best, points = tuning.search(comparison.widen)
    config = grid.changed(config, best)
    seeds, place = comparison.seeds, folder / "seeds"
    if comparison.apart:
        return best, list(_separate_runs(config, seeds, place, data_dir)), points
    over = [f"seed={','.join(map(str, seeds))}"]
    sweep(config, over, place, data_dir, say=lambda line: None)
    return best, rows_of.read(place / "sweep.csv"), points


def _for_search(comparison: Comparison, method: Method, config, data_dir) -> ConfigDict:
    """Returns the config with which a method is tuned."""
    config = grid.changed(config, {"seed": comparison.tuning_seed})
    if not comparison.tuning_rounds or method.whole:
        return config
    keys = {"rounds": min(config.rounds, comparison.tuning_rounds)}
    if privacy.protection_of(config).noisy:
        # The noise of fewer rounds would be less, and so would its cost.
        guarantee = prepare(config, data_dir).experiment.guarantee
        assert guarantee is not None
        keys["privacy.noise_multiplier"] = guarantee.noise_multiplier
    return grid.changed(config, keys)


def _separate_runs(config, seeds: Sequence[int], folder, data_dir) -> Iterator[Row]:
    """Yields the rows of each seed as a separate run, in the form of a sweep."""
    for point, seed in enumerate(seeds):
        place, lost = folder / str(seed), []
        try:
            config = grid.changed(config, {"seed": seed})
            run_once(config, str(place), data_dir, say=lambda line: None)
        except NotFinite:
            numbers = [f"test_{name}" for name in (*metrics_of(config.model), "loss")]
            nowhere = dict.fromkeys(("train_loss", *numbers), float("nan"))
            sent = dict.fromkeys((tables.UP, tables.DOWN), 0)
            lost = [{"round": config.rounds, **nowhere, **sent}]
        path = place / "metrics.csv"
        rows = files.read_rows(path) if path.exists() else []
        for row in (*rows, *lost):
            yield {"point": point, "seed": seed, **row}


def _check(
    comparison: Comparison, configs: Mapping[str, ConfigDict], folder: pathlib.Path
) -> None:
    """Raises errors of all methods before the first one trains."""
    if any("/" not in name for name in odometer.read(folder)):
        msg = f"{folder} has a run, which {odometer.FILE} counts: use another workdir."
        raise ValueError(msg)
    places = {folder_of(folder, name) for name in comparison.methods}
    if len(places - {folder}) < len(comparison.methods):
        msg = f"Names give different folders, but for {', '.join(comparison.methods)}."
        raise ValueError(msg)
    metrics = {name: metrics_of(config.model)[0] for name, config in configs.items()}
    if len({*metrics.values()}) > 1:  # no table ranks different metrics
        got = ", ".join(f"{metric} of {name}" for name, metric in metrics.items())
        msg = f"All methods need the same model.metrics, got {got}."
        raise ValueError(msg)
    privacy.require_one_unit(configs.values())
    for name, config in configs.items():
        if comparison.apart and privacy.protection_of(config).noisy:
            msg = f"Expected methods without privacy for apart=True, got {name!r}."
            raise ValueError(msg)
        tune = comparison.methods[name].tune
        try:
            first = grid.changed(config, {key: tune[key][0] for key in tune})
            parse.check(first)
            privacy.check(first)
        except (ValueError, TypeError) as error:
            msg = f"{name}: {error}"
            raise ValueError(msg) from None
