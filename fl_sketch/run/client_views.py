"""Files about single clients: clients.csv during a run, and the rest at its end.

In a private run these files are for the simulator alone, and their names say so.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fl_sketch.core import files
from fl_sketch.core.protocols import Tree
from fl_sketch.engine.client_metrics import Found, MeasuredClients, summed_up
from fl_sketch.engine.recorder import Recorder
from fl_sketch.engine.round import State
from fl_sketch.run.setup import Setup
from fl_sketch.workdir.folder import Workdir
from fl_sketch.workdir.rows import MARK

ROWS, EACH, PICTURE = "clients.csv", "clients_last.csv", "clients.png"


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
    mark = MARK if recorder.known.private else ""
    write_columns(folder / f"{mark}participation.csv", columns)


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
        self._every, self._steps = config.clients_every, config.personal_steps
        self._folder = folder if self._every or self._steps else None
        self._mark = MARK if setup.private else ""
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
        """Writes metrics of the last model, and of the personal ones, for each client.

        Returns what the summary is to have of them.
        """
        if self._folder is None:
            return {}
        params = jax.device_get(params)
        found, personal = self._clients.look(params), None
        shown = {"the model": found}
        if self._steps:
            personal = self._clients.look(params, self._steps)
            shown[f"after {self._steps} steps on its data"] = personal
        self._note(done, found)
        _write_each(self._path(EACH), self._clients, found, personal, self.names)
        name = next(iter(self._clients.loss.measured))
        _draw(self._path(PICTURE), name, shown)
        seen = self._clients.held.sizes > 0
        summed = summed_up(found, seen)
        if personal:
            summed |= summed_up(personal, seen, "personal")
        return summed

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
        return self._folder.folder / f"{self._mark}{name}"


def _write_each(
    path: pathlib.Path,
    clients: MeasuredClients,
    found: Found,
    personal: Found | None,
    names: Sequence[str],
) -> None:
    """Writes a csv file with a row for each client, and `personal` models if any."""
    columns: dict[str, Any] = {
        "client": np.arange(clients.held.clients),
        **_named(names),
        "examples": clients.kept.sizes,
        "held_out": clients.held.sizes,
        **found,
        **{f"personal_{name}": values for name, values in (personal or {}).items()},
    }
    write_columns(path, columns)


def _draw(path: pathlib.Path, name: str, found: Mapping[str, Found]) -> None:
    """Draws a histogram of metric `name` over clients; the legend names `found`."""
    from matplotlib import ticker  # takes a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    plot = figure.subplots()
    values = {label: one[name][np.isfinite(one[name])] for label, one in found.items()}
    everything = np.concatenate(list(values.values()))
    if everything.size:
        bins = np.histogram_bin_edges(everything, bins=20).tolist()
        for label, column in values.items():
            label = f"{label}: mean {column.mean():.3f}"
            plot.hist(column, bins=bins, histtype="step", label=label)
        figure.legend(loc="outside upper center", fontsize="small")
        plot.yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    plot.set(xlabel=f"{name} per client on held-out examples", ylabel="clients")
    files.write_figure(path, figure)
