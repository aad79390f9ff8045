"""Pictures of many runs: a curve for each method."""

import math
import os
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fl_sketch.core import files, validate
from fl_sketch.models.metrics import METRICS, score_of
from fl_sketch.sweep.tables import DOWN, UP, Row, by_method
from fl_sketch.workdir import rows as names
from fl_sketch.workdir.tables import named

NEEDED = ("round", UP, DOWN)  # columns of evaluations
LOSSES = ("train_loss", "test_loss", "validation_loss")
FILES = ("comparison.csv", "sweep.csv", "metrics.csv")
STYLES = ("-", "--", ":")  # there are ten colours
ABSCISSAS = {  # the label of an axis, and the columns that are added up along it
    "rounds": ("round", ("round",)),
    "up": ("sent by all clients", (UP,)),
    "down": ("received by all clients", (DOWN,)),
    "both": ("sent and received by all clients", (UP, DOWN)),
    "epsilon": ("epsilon", ("epsilon",)),
}
DEFAULT = ("rounds", "up", "both")


def plot(
    workdirs: Sequence[str],
    path: str,
    only: Sequence[str] = (),
    *,
    xs: Sequence[str] = DEFAULT,
    metric: str = "",
) -> list[str]:
    """Draws the curves of results in one picture; returns the names of the lines.

    A run has a line, a sweep has one for each setting, and a comparison one for each
    method.

    Args:
      workdirs: the folders of results.
      path: the picture, which ends in .png, .pdf or .svg.
      only: parts of names; other lines are left out.
      xs: names of `ABSCISSAS`, a panel for each.
      metric: the metric to draw; empty: the score.
    """
    files.writable_file(path)
    endings = tuple(f".{ending}" for ending in files.PICTURES)
    if pathlib.Path(path).suffix not in endings:
        msg = f"--out must end in {', '.join(endings)}, got {path}."
        raise ValueError(msg)
    rows = read(workdirs, only)
    column = column_of(rows, metric)
    if not any(math.isfinite(float(row[column])) for row in rows):
        msg = f"Nothing to draw: no number in {column} is finite."
        raise ValueError(msg)
    draw(rows, path, xs, metric)
    return list(dict.fromkeys(row["method"] for row in rows))


def read(workdirs: Sequence[str], only: Sequence[str] = ()) -> list[Row]:
    """Returns the evaluations of folders, each with the name of its line as method.

    Folders with the same name are distinguished by path. Lines without a text of `only`
    in their names are left out.
    """
    folders = {pathlib.Path(folder).resolve(): folder for folder in workdirs}
    short = [folder.name for folder in folders]
    rows: list[Row] = []
    taken: set[str] = set()
    for place, folder in folders.items():
        name = place.name if short.count(place.name) == 1 else str(folder)
        evaluations = _evaluations(pathlib.Path(folder), name)
        if taken & {row["method"] for row in evaluations}:  # of another comparison
            for row in evaluations:
                row["method"] = f"{name}: {row['method']}"
        taken |= {row["method"] for row in evaluations}
        rows += evaluations
    left = [
        row for row in rows if not only or any(text in row["method"] for text in only)
    ]
    if not left:
        lines = ", ".join(dict.fromkeys(row["method"] for row in rows))
        msg = f"--only must be text of one of {lines}, got only={only}."
        raise ValueError(msg)
    return left


def _evaluations(folder: pathlib.Path, name: str) -> list[Row]:
    """Returns the evaluations of a folder, each with a method and a point."""
    inside = (folder, folder / names.SIMULATOR)
    file = next((f for f in FILES if any((at / f).is_file() for at in inside)), None)
    if file is None:
        msg = f"Expected a folder with one of {', '.join(FILES)}, got {folder}."
        raise ValueError(msg)
    hidden = folder / names.SIMULATOR / file  # with all columns
    rows = names.read(hidden if hidden.is_file() else folder / file)
    if not rows or not {*NEEDED} <= {*rows[0]}:
        msg = f"{folder / file} needs rows with {', '.join(NEEDED)}."
        raise ValueError(msg)
    evaluations = []
    for row in rows:
        method = {"method": name, "point": 0}
        if file == "sweep.csv":  # points that differ in the seed alone share a line
            columns = list(row)
            keys = columns[columns.index("point") + 1 : columns.index("round")]
            values = {key: row[key] for key in keys if key != "seed"}
            method["method"] = " ".join(filter(None, (name, named(values, " "))))
        evaluations.append({**method, **row})
    return evaluations


def draw(
    rows: Sequence[Row],
    path: str | os.PathLike,
    xs: Sequence[str] = DEFAULT,
    metric: str = "",
) -> None:
    """Draws the mean of each method's seeds as a line, and their range as a band.

    Arguments are those of `plot`; `rows` are evaluations with a method and a point.
    """
    from matplotlib.figure import Figure  # takes a second to import

    column = column_of(rows, metric)
    for x in xs:
        validate.one_of(tuple(ABSCISSAS), x=x)
        _require(rows, *ABSCISSAS[x][1])
    figure = Figure(figsize=(2.5 + 3.8 * len(xs), 4.2), layout="constrained")
    panels = figure.subplots(1, len(xs), sharey=True, squeeze=False)[0]
    methods = by_method(rows)
    for number, (name, seeds) in enumerate(methods.items()):
        # Evaluations of all seeds side by side, as far as every seed has come.
        places = list(zip(*seeds, strict=False))
        scores = [[float(row[column]) for row in place] for place in places]
        means, low, high = (list(map(f, scores)) for f in (statistics.fmean, min, max))
        style = {
            "linestyle": STYLES[number // 10 % len(STYLES)],
            "label": name,
            "marker": "o" if len(places) == 1 else "",  # no line shows a point
        }
        for panel, x in zip(panels, xs, strict=True):
            totals = (
                [sum(float(row[key]) for key in ABSCISSAS[x][1]) for row in place]
                for place in places
            )
            along = list(map(statistics.fmean, totals))
            (line,) = panel.plot(along, means, **style)
            colour = line.get_color()
            panel.fill_between(along, low, high, color=colour, alpha=0.15, linewidth=0)
    for panel, x in zip(panels, xs, strict=True):
        _scale(panel, *ABSCISSAS[x])
    panels[0].set(ylabel=column.replace("_", " "))
    counts = {len(seeds) for seeds in methods.values()}
    many = f"{'up to ' * (len(counts) > 1)}{max(counts)}"
    band = f"line: mean of {many} seeds\nband: their range"
    figure.legend(
        handles=panels[0].get_lines(),
        loc="outside right upper",
        fontsize="small",
        title=band if max(counts) > 1 else None,
        title_fontsize="small",
    )
    files.write_figure(path, figure)


def column_of(rows: Sequence[Mapping[str, Any]], metric: str = "") -> str:
    """Returns the column of a metric or a loss, which the rows of all methods have.

    Without a `metric` it is the one by which models are reported.
    """
    column = score_of(rows[0]).column
    if metric:
        legal = [name for name in rows[0] if name.partition("_")[2] in METRICS]
        legal += [name for name in LOSSES if name in rows[0]]
        column = metric if metric in legal else f"test_{metric}"
        validate.one_of(tuple(legal), metric=column)
    _require(rows, column)
    return column


def _require(rows: Sequence[Mapping[str, Any]], *columns: str) -> None:
    """Raises a ValueError unless all rows have these columns."""
    for row in rows:
        for column in columns:
            if row.get(column, "") == "":
                msg = f"{row['method']} has no {column}: use another metric or x."
                raise ValueError(msg)


def _scale(panel, label: str, columns: Sequence[str]) -> None:
    """Labels the axis of a panel, and gives bytes a log scale with a few ticks."""
    from matplotlib import ticker

    panel.set(xlabel=label)
    if columns == ("round",):
        panel.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    # A log scale of nothing, where all has diverged, is an error.
    if {UP, DOWN} & {*columns} and math.isfinite(panel.dataLim.minposx):
        panel.set_xscale("log")
        low, high = panel.get_xlim()
        # Within a decade matplotlib labels all ticks, over one another.
        subs = (1.0,) if math.log10(high / low) > 2 else (1.0, 3.0)
        panel.xaxis.set_major_locator(ticker.LogLocator(subs=subs, numticks=6))
        panel.xaxis.set_major_formatter(ticker.EngFormatter(unit="B"))
        panel.xaxis.set_minor_formatter(ticker.NullFormatter())
