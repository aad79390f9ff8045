"""Files about single clients, as a callback: clients.csv, and the rest at the end.

In a private run these files are for the simulator alone, in a folder of that name.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fl_sketch.core import files
from fl_sketch.core.protocols import Tree
from fl_sketch.engine.client_metrics import Found, summed_up
from fl_sketch.engine.ledger import Ledger
from fl_sketch.engine.loop import Callback, Progress
from fl_sketch.engine.recorder import Row
from fl_sketch.run.setup import Setup
from fl_sketch.workdir import rows

ROWS, EACH, PARTICIPATION = "clients.csv", "clients_last.csv", "participation.csv"


class ClientReport(Callback):
    """Measures single clients in the run of a setup, as often as its config says."""

    def __init__(self, setup: Setup, folder: pathlib.Path):
        """Takes a setup, and the folder of its run."""
        self._every = setup.config.clients_every
        self._private, self._names = setup.experiment.private, setup.client_names
        self._folder, self._rows = folder, list[Mapping[str, Any]]()
        self._kept, self._held = setup.dealt(setup.config.seed)
        self._measure = setup.clients_measured() if self._every else lambda params: {}

    def on_start(self, progress: Progress) -> Progress:
        """Forgets the rows after this progress, which will be measured again."""
        if self._every and (path := self._path(ROWS)).exists():
            found = [row for row in files.read_rows(path) if self._due(row["round"])]
            self._rows = [row for row in found if int(row["round"]) <= progress.done]
        return progress

    def on_row(self, row: Row, progress: Progress) -> None:
        """Measures all clients, if it is time."""
        if self._every and self._due(row["round"]):
            params = jax.device_get(progress.state.server.params)
            self._note(row["round"], self._measure(params))

    def at_end(self, done: int, params: Tree) -> dict[str, float]:
        """Writes metrics of the last model for each client; returns their summary."""
        if not self._every:
            return {}
        found = self._measure(jax.device_get(params))
        self._note(done, found)
        columns = {
            "client": np.arange(self._held.clients),
            **({"name": self._names} if self._names else {}),
            "examples": self._kept.sizes,
            "held_out": self._held.sizes,
            **found,
        }
        write_columns(self._path(EACH), columns)
        return summed_up(found, self._held.sizes > 0)

    def write_participation(self, book: Ledger) -> None:
        """Writes how often each client was asked and answered, and its bytes."""
        columns = {
            "client": range(len(book.up)),
            **({"name": self._names} if self._names else {}),
            "asked": book.asked,
            "answered": book.answered,
            "bytes_up": book.up,
            "bytes_down": book.down,
        }
        write_columns(self._path(PARTICIPATION), columns)

    def _due(self, done: int | str) -> bool:
        return int(done) % self._every == 0

    def _note(self, done: int, found: Found) -> None:
        row = {"round": done, **summed_up(found, self._held.sizes > 0)}
        before = [one for one in self._rows if int(one["round"]) < done]
        self._rows = [*before, row]
        files.write_rows(self._path(ROWS), self._rows)

    def _path(self, name: str) -> pathlib.Path:
        return rows.place(self._folder, self._private) / name


def write_columns(path: pathlib.Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Writes columns of equal lengths by their names as a csv file."""
    each = zip(*columns.values(), strict=True)
    files.write_rows(path, [dict(zip(columns, row, strict=True)) for row in each])
