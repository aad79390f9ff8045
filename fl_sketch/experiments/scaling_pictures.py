"""The three pictures of a laboratory of dimension."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fl_sketch.core import files
from fl_sketch.workdir.tables import half_width

Row = Mapping[str, Any]


def gap_against_d(gaps: Sequence[Row], path: str | os.PathLike) -> None:
    """Draws what sketches of a part of d lose against d, a line for each method.

    Args:
      gaps: the rows of gaps.csv.
      path: the path of the picture.
    """
    relative = [row for row in gaps if "/" in row["method"]]
    lines = _lines(relative, lambda row: (row["d"], row["gap"], row["half_width"]))
    _draw(lines, path, "parameters d", "accuracy lost to the sketch, in points")


def gap_against_dimension(gaps: Sequence[Row], path: str | os.PathLike) -> None:
    """Draws what sketches lose against b over the intrinsic dimension.

    Args:
      gaps: the rows of gaps.csv.
      path: the path of the picture.
    """
    first = gaps[0]["method"].partition(",")[0]
    own = [row for row in gaps if row["method"].startswith(f"{first},")]

    def place(row):
        return row["b_over_dimension"], row["gap"], row["half_width"]

    lines: dict[str, list] = {}
    for row in own:
        lines.setdefault(f"d = {int(row['d']):,}", []).append(place(row))
    label = "numbers of a message over the intrinsic dimension"
    _draw(lines, path, label, "accuracy lost to the sketch, in points")


def accuracy_against_d(runs: Sequence[Row], path: str | os.PathLike) -> None:
    """Draws test accuracy against d, a line for each method of the first server.

    Args:
      runs: the rows of runs.csv.
      path: the path of the picture.
    """
    first = runs[0]["method"]
    seeds: dict[tuple, list[float]] = {}
    for row in runs:
        if row["method"].partition(",")[0] == first:
            own = seeds.setdefault((row["method"], int(row["d"])), [])
            own.append(100 * float(row["test_accuracy"]))
    lines: dict[str, list] = {}
    for (method, d), values in seeds.items():
        lines.setdefault(method, []).append((d, np.mean(values), half_width(values)))
    _draw(lines, path, "parameters d", "test accuracy, in percent")


def _lines(rows: Sequence[Row], place: Callable[[Row], tuple]) -> dict[str, list]:
    lines: dict[str, list] = {}
    for row in rows:
        lines.setdefault(row["method"], []).append(place(row))
    return lines


def _draw(lines: Mapping[str, list], path, x: str, y: str) -> None:
    """Draws lines of (x, mean, half of its interval), x on a logarithmic scale."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    panel = figure.subplots()
    for number, (name, points) in enumerate(lines.items()):
        places = np.array(sorted(points), float).T
        places[2] = np.nan_to_num(places[2])
        mark = "osv^Dx+*<>"[number % 10]
        panel.errorbar(*places, fmt=f"{mark}-", capsize=3, label=name)
    panel.set(xscale="log", xlabel=x, ylabel=y)
    panel.legend(fontsize="small")
    files.write_figure(path, figure)
