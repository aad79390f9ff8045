"""The seeds of a method as runs of their own, with rows as a sweep has them."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from fl_sketch.config import privacy
from fl_sketch.config.build import metrics_of
from fl_sketch.core import files
from fl_sketch.engine.loop import NotFinite
from fl_sketch.run.run import run


def require_public(configs: Mapping[str, ConfigDict]) -> None:
    """Raises a ValueError for a private one of the `configs`, by its method's name."""
    for name, config in configs.items():
        if privacy.is_noisy(config):
            msg = f"Expected methods without privacy for apart=True, got {name!r}."
            raise ValueError(msg)


def evaluations(
    config: ConfigDict, seeds: Sequence[int], folder: pathlib.Path, data_dir: str | None
) -> list[dict[str, Any]]:
    """Returns the rows of the runs of a config, one run for each seed.

    What an earlier call has left of them goes on where it was stopped.

    Args:
      config: the config, but for its seed.
      seeds: the seeds; that of a run is the name of its folder.
      folder: the folder of all these folders.
      data_dir: the folder of raw data sets.

    Raises:
      Stopped: on SIGINT, SIGTERM or SIGHUP, after the progress is saved.
    """
    found = []
    for number, seed in enumerate(seeds):
        own = config.copy_and_resolve_references()
        own.seed, place = seed, folder / str(seed)
        diverged: list[dict[str, Any]] = []
        try:
            run(own, str(place), data_dir, say=_nothing)
        except NotFinite:
            diverged.append(_nowhere(own))
        path = place / "metrics.csv"
        rows = files.read_rows(path) if path.exists() else []
        found += [{"point": number, "seed": seed, **row} for row in (*rows, *diverged)]
    return found


def _nowhere(config: ConfigDict) -> dict[str, Any]:
    """Returns the last row of a run that has diverged."""
    measured = [f"test_{name}" for name in (*metrics_of(config), "loss")]
    sent = dict.fromkeys(("bytes_up_total", "bytes_down_total"), 0)
    lost = dict.fromkeys(("train_loss", *measured), float("nan"))
    return {"round": config.rounds, **lost, **sent}


def _nothing(line: str) -> None:
    del line
