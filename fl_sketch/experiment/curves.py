"""curves.png: loss and accuracy against rounds, and against what they cost."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fl_sketch import files


def draw(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike) -> None:
    """Draws the rows of metrics.csv; numbers may still be strings."""
    from matplotlib.figure import Figure  # takes a second to import

    def column(name):
        return [float(row[name]) for row in rows]

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    loss, accuracy, traffic = figure.subplots(1, 3)
    loss.plot(column("round"), column("train_loss"), label="train, before the round")
    loss.plot(column("round"), column("test_loss"), label="test")
    loss.set(xlabel="round", ylabel="loss")
    loss.legend()
    accuracy.plot(column("round"), column("test_accuracy"))
    accuracy.set(xlabel="round", ylabel="test accuracy")
    megabytes = [value / 1e6 for value in column("bytes_up_total")]
    traffic.plot(megabytes, column("test_accuracy"))
    traffic.set(xlabel="MB sent by all clients", ylabel="test accuracy")
    files.write_figure(path, figure)
