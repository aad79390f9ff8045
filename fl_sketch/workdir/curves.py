"""curves.png: loss and score against rounds, and against what they cost."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fl_sketch.core import files
from fl_sketch.workdir.rows import all_plain, score_of


def draw(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike) -> None:
    """Draws `rows` of metrics.csv as a png at `path`; numbers may be strings."""
    from matplotlib.figure import Figure  # takes a second to import

    private = any(row.get("epsilon") for row in rows)
    mark = " (simulator only)" * private
    rows = all_plain(rows)

    def column(name):
        return [float(row[name]) for row in rows]

    # What is a point cannot be seen as a line.
    style = {"marker": "o" if len(rows) == 1 else ""}
    figure = Figure(figsize=(13.3 if private else 10, 3.2), layout="constrained")
    by = score_of(rows[0])
    loss, score, traffic, *rest = figure.subplots(1, 4 if private else 3)
    loss.plot(column("round"), column("train_loss"), label=f"of clients{mark}", **style)
    loss.plot(column("round"), column("test_loss"), label="on the test set", **style)
    loss.set(xlabel="round", ylabel="loss")
    loss.legend()
    score.plot(column("round"), column(by.column), **style)
    score.set(xlabel="round", ylabel=by.title)
    megabytes = [value / 1e6 for value in column("bytes_up_total")]
    traffic.plot(megabytes, column(by.column), **style)
    traffic.set(xlabel=f"MB sent by all clients{mark}", ylabel=by.title)
    for spent in rest:
        spent.plot(column("epsilon"), column(by.column), **style)
        spent.set(xlabel="epsilon given away", ylabel=by.title)
    files.write_figure(path, figure)
