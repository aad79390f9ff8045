"""What a run says of single clients: clients.csv as it goes, and at its end the rest.

In a private run these files are for the simulator alone, and their names say so.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax

from fl_sketch.core import files
from fl_sketch.core.protocols import Tree
from fl_sketch.engine import client_metrics as clients
from fl_sketch.engine.ledger import Ledger
from fl_sketch.run.build import Experiment
from fl_sketch.workdir.folder import Workdir
from fl_sketch.workdir.rows import MARK

ROWS, EACH, PICTURE = "clients.csv", "clients_last.csv", "clients.png"


def write_participation(folder: pathlib.Path, book: Ledger, private: bool) -> None:
    """Writes a row for each client: how often it was asked and answered, and bytes.

    Args:
      folder: the folder of the run.
      book: what was noted of clients.
      private: whether they are protected, so that nobody else may see it.
    """
    names = {"asked": book.asked, "answered": book.answered}
    names |= {"bytes_up": book.up, "bytes_down": book.down}
    rows = zip(*names.values(), strict=True)
    path = folder / f"{MARK if private else ''}participation.csv"
    table = [
        {"client": client, **dict(zip(names, row, strict=True))}
        for client, row in enumerate(rows)
    ]
    files.write_rows(path, table)


class Looks:
    """Looks at clients in the folder of a run; without one, or unasked, none."""

    def __init__(self, experiment: Experiment, folder: Workdir | None, done: int):
        """Forgets what will be seen again: after a round, and at the end of a run.

        Args:
          experiment: the experiment; its config says when to look.
          folder: the folder of the run; None: that is another process's.
          done: the number of rounds done.
        """
        config = experiment.config
        self._every, self._steps = config.clients_every, config.personal_steps
        self._folder = folder if self._every or self._steps else None
        self._mark = MARK if experiment.private else ""
        if self._folder is None:
            return
        self._clients = experiment.clients()
        path = self._path(ROWS)
        rows = files.read_rows(path) if path.exists() else []
        self._rows: list[Mapping[str, Any]] = [
            row for row in rows if int(row["round"]) <= done and self._due(row["round"])
        ]

    def at(self, done: int, params: Tree) -> None:
        """Looks at all clients, if a round `done` is one to look after, at `params`."""
        if self._folder is not None and self._due(done):
            self._note(done, self._clients.look(jax.device_get(params)))

    def at_end(self, done: int, params: Tree) -> dict[str, float]:
        """Writes how the last model does for each client, and its own one.

        Args:
          done: the number of the last round.
          params: the model after it.

        Returns:
          What the summary is to have of it.
        """
        if self._folder is None:
            return {}
        params = jax.device_get(params)
        found, own = self._clients.look(params), None
        shown = {"the model": found}
        if self._steps:
            own = self._clients.look(params, self._steps)
            shown[f"after {self._steps} steps of its own"] = own
        self._note(done, found)
        clients.write_each(self._path(EACH), self._clients, found, own)
        name = next(iter(self._clients.loss.measured))
        clients.draw(self._path(PICTURE), name, shown)
        seen = self._clients.held.sizes > 0
        personal = clients.summed_up(own, seen, "personal") if own else {}
        return {**clients.summed_up(found, seen), **personal}

    def _due(self, done: int | str) -> bool:
        return self._every > 0 and int(done) % self._every == 0

    def _note(self, done: int, found: clients.Found) -> None:
        seen = self._clients.held.sizes > 0
        row = {"round": done, **clients.summed_up(found, seen)}
        before = [one for one in self._rows if int(one["round"]) < done]
        self._rows = [*before, row]
        files.write_rows(self._path(ROWS), self._rows)

    def _path(self, name: str):
        assert self._folder
        return self._folder.folder / f"{self._mark}{name}"
