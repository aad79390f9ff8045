"""Rows for TensorBoard, where tensorboardX is installed."""

import importlib.util
import numbers
import os
from collections.abc import Callable, Mapping
from typing import Any


def require_installed() -> None:
    """Raises a ValueError in one line unless tensorboardX can be imported."""
    if importlib.util.find_spec("tensorboardX") is None:
        msg = "Expected tensorboardX to be installed, got tensorboard=True without it."
        raise ValueError(msg)


def open_board(
    folder: str | os.PathLike, after: int
) -> Callable[[Mapping[str, Any]], None]:
    """Returns a function that writes the numbers of a row as events in `folder`.

    A resumed run goes on `after` some round: later events are dropped.
    """
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(folder), purge_step=after + 1)

    def write(row):
        for name, value in row.items():
            if name != "round" and isinstance(value, numbers.Real):
                writer.add_scalar(name, value, row["round"])
        writer.flush()

    return write
