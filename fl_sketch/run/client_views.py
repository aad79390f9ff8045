"""Files about single clients: clients.csv during a run, and the rest at its end.

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
from fl_sketch.engine.recorder import Recorder
from fl_sketch.engine.round import State
from fl_sketch.run.setup import Setup
from fl_sketch.workdir.folder import Workdir
from fl_sketch.workdir.rows import place

ROWS, EACH = "clients.csv", "clients_last.csv"


def write_participation(
    folder: pathlib.Path, recorder: Recorder, names: Sequence[str] = ()
) -> None:
    """Writes how often each client was asked and answered, and its bytes.

    Args:
      names: those of the clients; empty: they have none.
    """
    book = recorder.ledger
    columns = {
        "client": range(recorder.known.population),
        **_named(names),
        "asked": book.asked,
        "answered": book.answered,
        "bytes_up": book.up,
        "bytes_down": book.down,
    }
    folder = place(folder, recorder.known.private)
    write_columns(folder / "participation.csv", columns)


def _named(names: Sequence[str]) -> dict[str, Sequence[str]]:
    return {"name": names} if names else {}


def write_columns(path: pathlib.Path, columns: Mapping[str, Any]) -> None:
    """Writes columns of equal lengths by their names as a csv file."""
    rows = zip(*columns.values(), strict=True)
    files.write_rows(path, [dict(zip(columns, row, strict=True)) for row in rows])


class Views:
    """Measures single clients in the run of a setup; without a folder, nothing.

    `names` are those of the clients; empty: they have none.
    """

    def __init__(self, setup: Setup, folder: Workdir | None):
        """Takes a setup whose config says when to measure, and the run's folder."""
        config = setup.config
        self._every = config.clients_every
        self._folder = folder if self._every else None
        self._private = setup.private
        self.names = setup.client_names
        self._rows: list[Mapping[str, Any]] = []
        if self._folder is not None:
            self._clients = setup.clients(setup.numbers, config.seed)

    def resume(self, done: int) -> None:
        """Forgets the rows after so many rounds, which will be measured again."""
        if self._folder is not None and (path := self._path(ROWS)).exists():
            rows = [row for row in files.read_rows(path) if self._due(row["round"])]
            self._rows = [row for row in rows if int(row["round"]) <= done]

    def after_row(self, done: int, state: State) -> None:
        """Measures all clients, if round `done` is one to measure after."""
        if self._folder is not None and self._due(done):
            self._note(done, self._clients.look(jax.device_get(state.server.params)))

    def at_end(self, done: int, params: Tree) -> dict[str, float]:
        """Writes metrics of the last model for each client; returns their summary."""
        if self._folder is None:
            return {}
        clients = self._clients
        found = clients.look(jax.device_get(params))
        self._note(done, found)
        columns = {
            "client": np.arange(clients.held.clients),
            **_named(self.names),
            "examples": clients.kept.sizes,
            "held_out": clients.held.sizes,
            **found,
        }
        write_columns(self._path(EACH), columns)
        return summed_up(found, clients.held.sizes > 0)

    def _due(self, done: int | str) -> bool:
        return self._every > 0 and int(done) % self._every == 0

    def _note(self, done: int, found: Found) -> None:
        seen = self._clients.held.sizes > 0
        row = {"round": done, **summed_up(found, seen)}
        before = [one for one in self._rows if int(one["round"]) < done]
        self._rows = [*before, row]
        files.write_rows(self._path(ROWS), self._rows)

    def _path(self, name: str) -> pathlib.Path:
        assert self._folder
        return place(self._folder.folder, self._private) / name
