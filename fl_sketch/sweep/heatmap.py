"""heatmap.png: the last score over the two axes of a sweep, or over one."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fl_sketch.core import files
from fl_sketch.sweep.grid import Axis, shown
from fl_sketch.sweep.ranking import ranked
from fl_sketch.workdir.rows import score_of

WRITTEN_UP_TO = 12  # values of an axis, that the cells still have room for numbers


def draw(
    axes: Sequence[Axis], rows: Sequence[Mapping[str, Any]], path: str | os.PathLike
) -> None:
    """Draws the rows of sweep.csv.

    The first two keys that take more than one value span the picture, the seed only
    where there are no others. A cell is the mean over all the rest, and stays grey if
    any of it diverged. With one such key it is a line, and the range around it.

    Args:
      axes: the axes of the grid.
      rows: the rows of sweep.csv.
      path: the path of the picture.
    """
    from matplotlib.figure import Figure  # takes a second to import

    drawn = [axis for axis in axes if len(axis.values) > 1 and axis.key != "seed"]
    drawn = (drawn or list(axes))[:2]
    figure, said = Figure(figsize=(6, 4), layout="constrained"), score_of(rows[0])
    plot, cells = figure.subplots(), _cells(drawn, axes, rows)
    most = max(map(len, cells.values()))
    rest = [axis.key for axis in axes if len(axis.values) > 1 and axis not in drawn]
    what = "seeds" if rest == ["seed"] else f"points over {', '.join(rest)}"
    spread = "range" if len(drawn) == 1 else "deviation"
    title = said.title
    if most > 1:
        title += f", mean and {spread} of {most} {what}"
    (_line if len(drawn) == 1 else _map)(plot, drawn, cells, title)
    files.write_figure(path, figure)


def _cells(drawn: Sequence[Axis], axes, rows) -> dict[tuple[int, ...], list[float]]:
    """Returns the scores of all points that share the places of a cell."""
    cells: dict[tuple[int, ...], list[float]] = {}
    said = score_of(rows[0])
    for row in ranked(rows, axes):
        place = tuple(axis.values.index(row[axis.key]) for axis in drawn)
        cells.setdefault(place, []).append(said.of(row))
    return cells


def _line(plot, drawn: Sequence[Axis], cells, title: str) -> None:
    (axis,) = drawn
    each = [np.asarray(cells[place,]) for place in range(len(axis.values))]
    places = range(len(each))
    low, middle, high = ([f(own) for own in each] for f in (np.min, np.mean, np.max))
    if isinstance(axis.values[0], int | float) and not isinstance(axis.values[0], bool):
        plot.plot(places, middle, marker="o")
        plot.fill_between(places, low, high, alpha=0.2)
    else:  # between two names there is nothing
        plot.vlines(places, low, high, alpha=0.4, linewidth=6)
        plot.plot(places, middle, marker="o", linestyle="none")
    plot.set_xticks(places, [shown(value) for value in axis.values])
    plot.set(xlabel=axis.key, ylabel=title)


def _map(plot, drawn: Sequence[Axis], cells, title: str) -> None:
    down, across = drawn
    means = np.full([len(axis.values) for axis in drawn], np.nan)
    for place, own in cells.items():
        means[place] = np.mean(own)
    plot.set_facecolor("lightgrey")
    image = plot.imshow(means, aspect="auto", origin="lower")
    plot.figure.colorbar(image, label=title)
    plot.set_xticks(range(len(across.values)), [shown(v) for v in across.values])
    plot.set_yticks(range(len(down.values)), [shown(v) for v in down.values])
    plot.set(xlabel=across.key, ylabel=down.key)
    if max(means.shape) <= WRITTEN_UP_TO:
        for (row, column), mean in np.ndenumerate(means):
            own = cells[row, column]
            text = "diverged" if np.isnan(mean) else f"{mean:.3f}"
            if len(own) > 1 and not np.isnan(mean):
                text += f"\n+- {np.std(own, ddof=1):.3f}"
            style = {"boxstyle": "round", "facecolor": "white", "alpha": 0.6, "lw": 0}
            # Two lines of ten letters have their place in a picture of five columns.
            size = min(10.0, 50 / max(means.shape))
            plot.text(
                column, row, text, ha="center", va="center", bbox=style, fontsize=size
            )
