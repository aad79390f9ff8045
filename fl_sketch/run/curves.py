"""curves.png: loss and accuracy against rounds, and against what they cost."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fl_sketch import files
from fl_sketch.run.rows import all_plain


def draw(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike) -> None:
    """Draws `rows` of metrics.csv as a png at `path`; numbers may be strings."""
    from matplotlib.figure import Figure  # takes a second to import

    mark = " (simulator only)" * any(row.get("epsilon") for row in rows)
    rows = all_plain(rows)

    def column(name):
        return [float(row[name]) for row in rows]

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    loss, accuracy, traffic = figure.subplots(1, 3)
    loss.plot(
        column("round"), column("train_loss"), label=f"train, before the round{mark}"
    )
    loss.plot(column("round"), column("test_loss"), label="test")
    loss.set(xlabel="round", ylabel="loss")
    loss.legend()
    accuracy.plot(column("round"), column("test_accuracy"))
    accuracy.set(xlabel="round", ylabel="test accuracy")
    megabytes = [value / 1e6 for value in column("bytes_up_total")]
    traffic.plot(megabytes, column("test_accuracy"))
    traffic.set(xlabel=f"MB sent by all clients{mark}", ylabel="test accuracy")
    files.write_figure(path, figure)
