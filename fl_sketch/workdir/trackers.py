"""Rows for programs that watch runs, TensorBoard and wandb: what may be published."""

import contextlib
import importlib
import importlib.util
import numbers
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fl_sketch.core import files
from fl_sketch.workdir import rows

TENSORBOARD, WANDB = "tensorboardX", "wandb"
PROJECT = "fl_sketch"
ID = "wandb_id"  # in the folder, drawn once
Write = Callable[[Mapping[str, Any]], None]


def require_installed(name: str) -> None:
    """Raises unless a tracker is installed."""
    if importlib.util.find_spec(name) is None:
        msg = f"Expected {name} to be installed, got none: pip install {name}."
        raise ValueError(msg)


@contextlib.contextmanager
def tensorboard(folder: pathlib.Path, after: int, private: bool) -> Iterator[Write]:
    """Yields what writes rows to a folder; events `after` this round are dropped."""
    board: Any = importlib.import_module(TENSORBOARD)
    writer = board.SummaryWriter(str(folder / "tensorboard"), purge_step=after + 1)

    def write(row: Mapping[str, Any]) -> None:
        for name, value in _numbers(row, private).items():
            writer.add_scalar(name, value, row["round"])
        writer.flush()

    yield write


@contextlib.contextmanager
def wandb(
    folder: pathlib.Path, config: Mapping[str, Any], private: bool
) -> Iterator[Write]:
    """Yields what sends rows to wandb, whose variables say where they go."""
    path, module = folder / ID, importlib.import_module(WANDB)
    if not path.exists():
        files.write_text(path, os.urandom(8).hex())
    run: Any = module.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=folder.absolute().name,
        id=path.read_text(),
        dir=str(folder),
        config=dict(config),
        resume="allow",
        settings={"console": "off"},  # the screen shows what only the simulator may see
    )
    try:
        yield lambda row: run.log(_numbers(row, private), step=int(row["round"]))
    finally:
        run.finish()


def _numbers(row: Mapping[str, Any], private: bool) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in (rows.published(row) if private else row).items()
        if isinstance(value, numbers.Real) and name != "round"
    }
