"""Pictures of many runs: curves of methods, and the scores of a sweep's grid."""

import math
import os
import pathlib
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fl_sketch.core import files, validate
from fl_sketch.models.metrics import METRICS, score_of
from fl_sketch.sweep.grid import Axis
from fl_sketch.sweep.tables import DOWN, UP, Row, by_method, ranked
from fl_sketch.workdir import rows as names
from fl_sketch.workdir.tables import named, shown

NEEDED = ("round", UP, DOWN)  # columns of evaluations
LOSSES = ("train_loss", "test_loss", "validation_loss")
FILES = ("comparison.csv", "sweep.csv", "metrics.csv")
TITLED = 9  # letters of a title on an inch
STYLES = ("-", "--", ":")  # there are ten colours
WRITTEN_UP_TO = 12  # values of an axis, with room for numbers in cells
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
    labels: Sequence[str] = (),
    title: str = "",
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
      labels: texts "NAME=words" for the legend; both sides may have a "=".
      title: the title of the picture.

    Raises:
      ValueError: in one line, for what cannot be read or drawn.
    """
    files.writable_file(path)
    endings = tuple(f".{form}" for form in files.PICTURES)
    if pathlib.Path(path).suffix not in endings:
        msg = f"--out must end in {', '.join(endings)}, got {path}."
        raise ValueError(msg)
    rows = read(workdirs, only)
    names = list(dict.fromkeys(row["method"] for row in rows))
    words = _labels(labels, names)
    column = column_of(rows, metric)
    if not any(math.isfinite(float(row[column])) for row in rows):
        msg = f"Expected finite numbers in {column}, got none."
        raise ValueError(msg)
    draw(rows, path, xs, metric, words, title)
    return names


def read(workdirs: Sequence[str], only: Sequence[str] = ()) -> list[Row]:
    """Returns the evaluations of folders, each with the name of its line as method.

    Folders with the same name are distinguished by path. Arguments are those of `plot`.

    Raises:
      ValueError: for a folder that has no evaluations, or if no line is left.
    """
    folders = {pathlib.Path(folder).resolve(): folder for folder in workdirs}
    short = [folder.name for folder in folders]
    rows: list[Row] = []
    taken: set[str] = set()
    for place, folder in folders.items():
        name = place.name if short.count(place.name) == 1 else str(folder)
        evaluations = list(_evaluations(pathlib.Path(folder), name))
        if taken & {row["method"] for row in evaluations}:  # of another comparison
            for row in evaluations:
                row["method"] = f"{name}: {row['method']}"
        taken |= {row["method"] for row in evaluations}
        rows += evaluations
    left = [
        row for row in rows if not only or any(text in row["method"] for text in only)
    ]
    if not left:
        names = ", ".join(dict.fromkeys(row["method"] for row in rows))
        msg = f"Expected --only to be text of one of {names}, got only={only}."
        raise ValueError(msg)
    return left


def draw(
    rows: Sequence[Row],
    path: str | os.PathLike,
    xs: Sequence[str] = DEFAULT,
    metric: str = "",
    labels: Mapping[str, str] = {},  # noqa: B006 - only read
    title: str = "",
) -> None:
    """Draws the mean of each method's seeds as a line, and their range as a band.

    Arguments are those of `plot`; `rows` are evaluations with a method and a point.

    Raises:
      ValueError: in one line, for an axis or a metric that the rows do not have.
    """
    from matplotlib.figure import Figure  # takes a second to import

    column = column_of(rows, metric)
    for x in xs:
        validate.one_of(tuple(ABSCISSAS), x=x)
        _require(rows, *ABSCISSAS[x][1])
    width = 2.5 + 3.8 * len(xs)
    figure = Figure(figsize=(width, 4.2), layout="constrained")
    panels = figure.subplots(1, len(xs), sharey=True, squeeze=False)[0]
    methods = by_method(rows)
    for number, (name, seeds) in enumerate(methods.items()):
        # Evaluations of all seeds side by side, as far as every seed has come.
        places = list(zip(*seeds, strict=False))
        scores = [[float(row[column]) for row in place] for place in places]
        means, low, high = (list(map(f, scores)) for f in (statistics.fmean, min, max))
        style = {
            "linestyle": STYLES[number // 10 % len(STYLES)],
            "label": labels.get(name, name),
            "marker": "o" if len(places) == 1 else "",  # no line shows a point
        }
        for panel, x in zip(panels, xs, strict=True):
            along = [_mean(place, ABSCISSAS[x][1]) for place in places]
            (line,) = panel.plot(along, means, **style)
            colour = line.get_color()
            panel.fill_between(along, low, high, color=colour, alpha=0.15, linewidth=0)
    for panel, x in zip(panels, xs, strict=True):
        _scale(panel, *ABSCISSAS[x])
    panels[0].set(ylabel=column.replace("_", " "))
    if title:
        lines = textwrap.wrap(title, int(TITLED * width))
        figure.suptitle("\n".join(lines))
    figure.legend(
        handles=panels[0].get_lines(),
        loc="outside right upper",
        fontsize="small",
        title=_band({len(seeds) for seeds in methods.values()}),
        title_fontsize="small",
    )
    files.write_figure(path, figure)


def column_of(rows: Sequence[Mapping[str, Any]], metric: str = "") -> str:
    """Returns the column of a metric or a loss, which the rows of all methods have.

    Without a `metric` it is the one by which models are reported.

    Raises:
      ValueError: in one line, for a name that is no metric, or that some rows lack.
    """
    column = score_of(rows[0]).column
    if metric:
        legal = [name for name in rows[0] if name.partition("_")[2] in METRICS]
        legal += [name for name in LOSSES if name in rows[0]]
        column = metric if metric in legal else f"test_{metric}"
        validate.one_of(tuple(legal), metric=column)
    _require(rows, column)
    return column


def heatmap(
    axes: Sequence[Axis], rows: Sequence[Mapping[str, Any]], path: str | os.PathLike
) -> None:
    """Draws the last score over the two axes of a sweep, or over one.

    These are the first two keys with several values; the seed is one only if there are
    no others. A cell is the mean over all other keys, and is grey if a point of it
    diverged. A single key has a line, and the range around it.
    """
    from matplotlib.figure import Figure  # takes a second to import

    several = [axis for axis in axes if len(axis.values) > 1]
    drawn = [axis for axis in several if axis.key != "seed"]
    drawn = (drawn or list(axes))[:2]
    cells = cells_of(drawn, axes, rows)
    rest = [axis.key for axis in several if axis not in drawn]
    title, most = score_of(rows[0]).title, max(map(len, cells.values()))
    if most > 1:
        what = "seeds" if rest == ["seed"] else f"points over {', '.join(rest)}"
        spread = "range" if len(drawn) == 1 else "deviation"
        title += f", mean and {spread} of {most} {what}"
    figure = Figure(figsize=(6, 4), layout="constrained")
    (_line if len(drawn) == 1 else _map)(figure.subplots(), drawn, cells, title)
    files.write_figure(path, figure)


def cells_of(
    drawn: Sequence[Axis], axes: Sequence[Axis], rows: Sequence[Mapping[str, Any]]
) -> dict[tuple[int, ...], list[float]]:
    """Returns the scores of all points that share a place on the axes `drawn`."""
    cells: dict[tuple[int, ...], list[float]] = {}
    score = score_of(rows[0])
    for row in ranked(rows, axes):
        place = tuple(axis.values.index(row[axis.key]) for axis in drawn)
        cells.setdefault(place, []).append(score.of(row))
    return cells


def _evaluations(folder: pathlib.Path, name: str) -> Iterator[Row]:
    """Yields the evaluations of a folder, each with a method and a point."""
    inside = (folder, folder / names.SIMULATOR)
    file = next((f for f in FILES if any((at / f).is_file() for at in inside)), None)
    if file is None:
        msg = f"Expected a folder with one of {', '.join(FILES)}, got {folder}."
        raise ValueError(msg)
    hidden = folder / names.SIMULATOR / file  # with all columns
    rows = names.read(hidden if hidden.is_file() else folder / file)
    if not rows or not {*NEEDED} <= {*rows[0]}:
        msg = f"Expected rows with {', '.join(NEEDED)} in {folder / file}."
        raise ValueError(msg)
    for row in rows:
        method = {"method": name, "point": 0}
        if file == "sweep.csv":  # points that differ in the seed alone share a line
            columns = list(row)
            keys = columns[columns.index("point") + 1 : columns.index("round")]
            values = {key: row[key] for key in keys if key != "seed"}
            method["method"] = " ".join(filter(None, (name, named(values, " "))))
        yield {**method, **row}


def _labels(texts: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Returns the words for lines, by their names."""
    labels = {}
    for text in texts:
        starts = [name for name in names if text.startswith(f"{name}=")]
        name = max(starts, key=len, default=text.partition("=")[0])
        if name not in names or "=" not in text:
            msg = f"Expected --label=NAME=TEXT for a name of {', '.join(names)}, got "
            raise ValueError(msg + f"--label={text}.{validate.nearest(name, names)}")
        labels[name] = text[len(name) + 1 :]
    return labels


def _require(rows: Sequence[Mapping[str, Any]], *columns: str) -> None:
    """Raises a ValueError unless all rows have these columns."""
    for row in rows:
        for column in columns:
            if row.get(column, "") == "":
                msg = f"Expected {column} in all rows, got none in those of "
                raise ValueError(msg + f"{row['method']}: use another metric or x.")


def _mean(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> float:
    """Returns the mean over rows of the sum of some columns."""
    return statistics.fmean(sum(float(row[name]) for name in columns) for row in rows)


def _band(counts: set[int]) -> str | None:
    """Returns what lines and bands are, of methods with these numbers of seeds."""
    if max(counts) == 1:
        return None
    many = f"{'up to ' * (len(counts) > 1)}{max(counts)}"
    return f"line: mean of {many} seeds\nband: their range"


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


def _line(plot, drawn: Sequence[Axis], cells, title: str) -> None:
    """Draws the mean and the range of the scores over one axis."""
    (axis,) = drawn
    places = range(len(axis.values))
    low, mean, high = (
        [f(cells[place,]) for place in places] for f in (np.min, np.mean, np.max)
    )
    if isinstance(axis.values[0], int | float) and not isinstance(axis.values[0], bool):
        plot.plot(places, mean, marker="o")
        plot.fill_between(places, low, high, alpha=0.2)
    else:  # there is nothing between two names
        plot.vlines(places, low, high, alpha=0.4, linewidth=6)
        plot.plot(places, mean, marker="o", linestyle="none")
    plot.set_xticks(places, [shown(value) for value in axis.values])
    plot.set(xlabel=axis.key, ylabel=title)


def _map(plot, drawn: Sequence[Axis], cells, title: str) -> None:
    """Draws the mean of the scores over two axes as colours."""
    down, across = drawn
    means = np.full([len(axis.values) for axis in drawn], np.nan)
    for place, scores in cells.items():
        means[place] = np.mean(scores)
    plot.set_facecolor("lightgrey")
    image = plot.imshow(means, aspect="auto", origin="lower")
    plot.figure.colorbar(image, label=title)
    plot.set_xticks(range(len(across.values)), [shown(v) for v in across.values])
    plot.set_yticks(range(len(down.values)), [shown(v) for v in down.values])
    plot.set(xlabel=across.key, ylabel=down.key)
    if max(means.shape) > WRITTEN_UP_TO:
        return
    box = {"boxstyle": "round", "facecolor": "white", "alpha": 0.6, "lw": 0}
    # Two lines of ten letters fit a cell in a picture of five columns.
    style = {"ha": "center", "va": "center", "fontsize": min(10, 50 / max(means.shape))}
    for (row, column), mean in np.ndenumerate(means):
        text = "diverged" if np.isnan(mean) else f"{mean:.3f}"
        plot.text(column, row, text, bbox=box, **style)
