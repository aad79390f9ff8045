"""Rows for programs that watch runs: TensorBoard, wandb and mlflow.

Columns that only the simulator of a private run may see stay in the run's folder.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import numbers
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fl_sketch.core import validate
from fl_sketch.workdir.rows import MARK

NAMES = ("wandb", "mlflow")  # services
TENSORBOARD = "tensorboardX"
PROJECT = "fl_sketch"
Write = Callable[[Mapping[str, Any]], None]


def require_installed(tracker: str, tensorboard: bool = False) -> None:
    """Raises a ValueError in one line unless what is asked for is installed."""
    validate.one_of(("", *NAMES), tracker=tracker)
    if tracker and importlib.util.find_spec(tracker) is None:
        msg = f"Expected {tracker} to be installed, got tracker={tracker} without it: "
        raise ValueError(msg + f"pip install {tracker}.")
    if tensorboard and importlib.util.find_spec(TENSORBOARD) is None:
        msg = f"Expected {TENSORBOARD} to be installed, got tensorboard=True without "
        raise ValueError(msg + "it.")


@contextlib.contextmanager
def tracking(
    name: str, folder: str | os.PathLike, config: Mapping[str, Any], after: int = 0
) -> Iterator[Write]:
    """Yields a function that sends a row of the run in `folder` to tracker `name`.

    The run there has the name of the folder and the values of the `config`, by dotted
    keys. wandb's own variables say where rows go, and so does MLFLOW_TRACKING_URI;
    without it mlflow writes to the folder, as TensorBoard does. A resumed run continues
    `after` some round, and TensorBoard drops later events.
    """
    services = {"wandb": _wandb, "mlflow": _mlflow, TENSORBOARD: _tensorboard(after)}
    with services[name](pathlib.Path(folder).absolute(), config) as send:

        def write(row: Mapping[str, Any]) -> None:
            values = {
                key: float(value)
                for key, value in row.items()
                if isinstance(value, numbers.Real)
                and (name == TENSORBOARD or not key.startswith(MARK))
            }
            send(values, int(row["round"]))

        yield write


def _tensorboard(after: int):
    @contextlib.contextmanager
    def board(folder: pathlib.Path, config: Mapping[str, Any]):
        del config
        board: Any = importlib.import_module(TENSORBOARD)
        writer = board.SummaryWriter(str(folder / "tensorboard"), purge_step=after + 1)

        def send(values: dict[str, float], step: int) -> None:
            for name, value in values.items():
                if name != "round":
                    writer.add_scalar(name, value, step)
            writer.flush()

        yield send

    return board


@contextlib.contextmanager
def _wandb(folder: pathlib.Path, config: Mapping[str, Any]):
    wandb: Any = importlib.import_module("wandb")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=folder.name,
        id=hashlib.sha256(str(folder).encode()).hexdigest()[:16],
        dir=str(folder),
        config=dict(config),
        resume="allow",
        settings={"console": "off"},  # the screen shows what only the simulator may see
    )
    try:
        yield lambda values, step: run.log(values, step=step)
    finally:
        run.finish()


@contextlib.contextmanager
def _mlflow(folder: pathlib.Path, config: Mapping[str, Any]):
    mlflow: Any = importlib.import_module("mlflow")
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        mlflow.set_tracking_uri((folder / "mlflow").as_uri())
    mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
    with mlflow.start_run(run_name=folder.name):
        mlflow.log_params({key: str(value)[:500] for key, value in config.items()})
        yield lambda values, step: mlflow.log_metrics(values, step=step)
