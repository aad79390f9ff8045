"""curves.png: loss and score of a run against rounds, and against their costs."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fl_sketch.core import files
from fl_sketch.models.metrics import score_of

COSTS = {"MB sent by all clients": ("bytes_up_total", 1e6), "epsilon": ("epsilon", 1)}


def draw(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike) -> None:
    """Draws the columns that metrics.csv has as a png; numbers may be strings."""
    from matplotlib.figure import Figure  # takes a second to import

    score = score_of(rows[0])
    costs = {"round": ("round", 1)}
    costs |= {name: at for name, at in COSTS.items() if rows[-1].get(at[0])}
    style = {"marker": "o" if len(rows) == 1 else ""}  # a line shows no single point

    def column(name: str) -> list[float]:
        return [float(row[name]) for row in rows]

    size = (3.3 * (1 + len(costs)), 3.2)
    figure = Figure(figsize=size, layout="constrained")
    losses, *panels = figure.subplots(1, 1 + len(costs))
    for part in ("train", "test"):
        if f"{part}_loss" in rows[0]:
            losses.plot(column("round"), column(f"{part}_loss"), label=part, **style)
    losses.set(xlabel="round", ylabel="loss")
    losses.legend()
    for panel, (name, (cost, unit)) in zip(panels, costs.items(), strict=True):
        at = [value / unit for value in column(cost)]
        panel.plot(at, column(score.column), **style)
        panel.set(xlabel=name, ylabel=score.title)
    files.write_figure(path, figure)
