"""The three pictures of a laboratory of dimension."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fl_sketch.core import files
from fl_sketch.workdir.tables import half_width

Rows = Sequence[Mapping[str, Any]]
LOST = "accuracy lost to the sketch, in points"


def draw(runs: Rows, gaps: Rows, folder: pathlib.Path) -> None:
    """Draws accuracy.png, gap.png and gap_against_dimension.png.

    They have test accuracy against d, a line for each method of the first server; what
    sketches of a part of d lose, against d; and what all of the first server lose,
    against b over the intrinsic dimension.
    """
    first = runs[0]["method"].partition(",")[0]
    scores: dict[tuple, list[float]] = {}
    for row in runs:
        if row["method"].partition(",")[0] == first:
            seeds = scores.setdefault((row["method"], int(row["d"])), [])
            seeds.append(100 * float(row["test_accuracy"]))
    accuracies = [(*key, np.mean(v), half_width(v)) for key, v in scores.items()]
    d, y = "parameters d", "test accuracy, in percent"
    _draw(accuracies, folder / "accuracy.png", d, y)
    relative, by_dimension = [], []
    for row in gaps:
        lost = row["gap"], row["half_width"]
        if "/" in row["method"]:
            relative.append((row["method"], row["d"], *lost))
        if row["method"].startswith(f"{first},"):
            line = f"d = {int(row['d']):,}"
            by_dimension.append((line, row["b_over_dimension"], *lost))
    _draw(relative, folder / "gap.png", d, LOST)
    x = "numbers of a message over the intrinsic dimension"
    _draw(by_dimension, folder / "gap_against_dimension.png", x, LOST)


def _draw(points: Sequence[tuple], path: pathlib.Path, x: str, y: str) -> None:
    """Draws lines through (line, x, mean, half of its interval), x on a log scale."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    panel = figure.subplots()
    for number, name in enumerate(dict.fromkeys(point[0] for point in points)):
        places = np.array(sorted(p[1:] for p in points if p[0] == name), float).T
        places[2] = np.nan_to_num(places[2])
        mark = "osv^Dx+*<>"[number % 10]
        panel.errorbar(*places, fmt=f"{mark}-", capsize=3, label=name)
    panel.set(xscale="log", xlabel=x, ylabel=y)
    panel.legend(fontsize="small")
    files.write_figure(path, figure)
