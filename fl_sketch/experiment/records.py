"""What a run leaves in its folder: config.json, metrics.csv, summary.json."""

import csv
import importlib.metadata
import json
import os
import pathlib
import resource
from typing import Any

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


class Records:
    """The files of one run, each written so that a reader never sees half of one."""

    def __init__(self, workdir: str | os.PathLike, config: dict[str, Any]):
        """Opens a folder for a run of this config.

        Raises:
          ValueError: if the folder holds a run, or cannot be written.
        """
        self.folder = pathlib.Path(workdir)
        self.rows: list[dict[str, Any]] = []
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if (self.folder / "config.json").exists():
                msg = (
                    f"Expected a fresh workdir, got workdir={workdir} with a run in it."
                )
                raise ValueError(msg)
            self._write("config.json", json.dumps(config, indent=2) + "\n")
        except OSError as error:
            msg = f"Expected a workdir that can be written, got workdir={workdir} "
            raise ValueError(msg + f"({error.strerror}).") from None

    def row(self, row: dict[str, Any]) -> None:
        """Adds a row to metrics.csv."""
        self.rows.append(row)
        path = self.folder / "metrics.csv"
        with open(path, "a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if len(self.rows) == 1:
                writer.writeheader()
            writer.writerow(row)

    def summary(self, facts: dict[str, Any], rounds: int) -> dict[str, Any]:
        """Writes and returns summary.json: the last row and the facts of the run."""
        last = self.rows[-1]
        summary = {
            **facts,
            "rounds": rounds,
            **{key: value for key, value in last.items() if key != "round"},
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        }
        self._write("summary.json", json.dumps(summary, indent=2) + "\n")
        return summary

    def _write(self, name: str, text: str) -> None:
        partial = self.folder / f".{name}.partial"
        partial.write_text(text)
        os.replace(partial, self.folder / name)
