"""curves.png: loss and score of a run against rounds, and against their costs."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fl_sketch.core import files
from fl_sketch.workdir.rows import all_plain, score_of


def draw(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike) -> None:
    """Draws the rows of metrics.csv as a png at `path`; numbers may be strings."""
    from matplotlib.figure import Figure  # takes a second to import

    private = any(row.get("epsilon") for row in rows)
    mark = " (simulator only)" * private
    rows = all_plain(rows)
    score = score_of(rows[0])

    def column(name: str) -> list[float]:
        return [float(row[name]) for row in rows]

    # A line does not show a single point.
    style = {"marker": "o" if len(rows) == 1 else ""}
    figure = Figure(figsize=(13.3 if private else 10, 3.2), layout="constrained")
    losses, *panels = figure.subplots(1, 4 if private else 3)
    losses.plot(column("round"), column("train_loss"), label=f"train{mark}", **style)
    losses.plot(column("round"), column("test_loss"), label="test", **style)
    losses.set(xlabel="round", ylabel="loss")
    losses.legend()
    sent = [value / 1e6 for value in column("bytes_up_total")]
    costs = {"round": column("round"), f"MB sent by all clients{mark}": sent}
    costs |= {"epsilon spent": column("epsilon")} if private else {}
    for panel, (name, cost) in zip(panels, costs.items(), strict=True):
        panel.plot(cost, column(score.column), **style)
        panel.set(xlabel=name, ylabel=score.title)
    files.write_figure(path, figure)
