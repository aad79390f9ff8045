"""The recorder: turns the reports of rounds into rows, bytes and epsilon.

Every run has one, and a sweep has one for each point. A row has the mean over its
rounds of every diagnostic that clients return (`loss` as train_loss), what was measured
of the model, what a mechanism released, all bytes so far, and the epsilon. Of a private
run it is for the simulator only: `workdir.rows` says which columns may be published.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fl_sketch.engine.ledger import Ledger, record
from fl_sketch.engine.prices import Prices
from fl_sketch.engine.round import Report
from fl_sketch.privacy.guarantee import Guarantee

Row = dict[str, Any]
ABSENCES = ("asked", "answered")  # where clients may be absent
RECENT = "recent/"  # in checkpoints: the numbers of rounds since the last row
BOOK = "ledger/"
LOST = np.inf  # in place of a loss that is not finite: NaN means that nobody answered
OF_CLIENTS = ("train_", "mechanism_")  # columns of diagnostics begin so
ROOM = 16  # rounds that a record has room for at first; it doubles


@dataclasses.dataclass
class Recorder:
    """The record of one run.

    Attributes:
      every: the number of rounds from row to row.
      guarantee: None: no message is bounded.
      absences: whether clients may be absent, so that rows say how many answered.
      recent: each diagnostic and released number in the rounds since the last row, NaN
        where no client answered; float32, with room for the rounds so far.
      diverged: the first round, from one, whose loss was not finite; 0: none.
    """

    every: int
    prices: Prices
    ledger: Ledger
    guarantee: Guarantee | None = None
    absences: bool = False
    recent: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    diverged: int = 0

    @property
    def private(self) -> bool:
        """Whether there is noise."""
        return bool(self.guarantee and self.guarantee.private)

    def record(self, number: int, report: Report) -> float:
        """Records round `number`, from zero; returns its training loss.

        Of a private run that is NaN: only the simulator's columns may have it.
        """
        shown = report.simulator_only
        record(self.ledger, self.prices, number, shown)
        answered = bool(shown.answered.any())
        # A client's `loss` overwrites a `train_loss` that it measured for release.
        for name in sorted(shown.diagnostics, reverse=True):
            value = shown.diagnostics[name] if answered else np.nan
            self._note(number, column_of(name), value)
        for name, value in report.released.items():
            self._note(number, name, value)
        # What clients measured must not show or decide anything in a private run.
        if self.private or not answered or "loss" not in shown.diagnostics:
            return np.nan
        loss = float(shown.diagnostics["loss"])
        self.lose(number + 1, loss)
        if not np.isfinite(loss):
            self._note(number, column_of("loss"), LOST)
        return loss

    def lose(self, done: int, value: float) -> None:
        """Notes the loss after `done` rounds, which may be finite or not."""
        if not np.isfinite(value) and not self.diverged:
            self.diverged = done

    def row(self, done: int, measured: Mapping[str, Any]) -> Row:
        """Returns the row after `done` rounds, with the metrics of the model."""
        guarantee, book = self.guarantee, self.ledger
        of_clients = [name for name in self.recent if name.startswith(OF_CLIENTS)]
        released = [name for name in self.recent if name not in of_clients]
        if both := {*measured} & {*released}:
            msg = "Expected look without columns that a mechanism releases, got "
            raise ValueError(msg + f"{', '.join(sorted(both))}.")
        absences = ABSENCES if self.absences else ()
        of_clients.sort(key=lambda name: name != "train_loss")
        row: Row = {
            "round": done,
            **{name: self._mean(name) for name in of_clients},
            **measured,
            **{name: mean_of_finite(self.recent[name]) for name in released},
            "bytes_up_total": int(book.up.sum()),
            "bytes_down_total": int(book.down.sum()),
            **{name: int(getattr(book, name).sum()) for name in absences},
            "epsilon": guarantee and guarantee.epsilon(done),
        }
        if guarantee and guarantee.private:
            row |= {"delta": guarantee.delta, "randomness": guarantee.randomness}
        return row

    def forget(self) -> None:
        """Forgets the rounds of a row that was made."""
        for values in self.recent.values():
            values[:] = np.nan

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays of a checkpoint."""
        book = {BOOK + name: total for name, total in self.ledger._asdict().items()}
        return book | {RECENT + name: values for name, values in self.recent.items()}

    def resume(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Goes on from what `arrays()` returned."""
        book = {
            name: np.array(arrays[BOOK + name], total.dtype).reshape(total.shape)
            for name, total in self.ledger._asdict().items()
        }
        self.ledger = Ledger(**book)
        self.recent = {
            name.removeprefix(RECENT): np.array(values)
            for name, values in arrays.items()
            if name.startswith(RECENT)
        }

    def _mean(self, name: str) -> float:
        """Returns the mean of a diagnostic; NaN if a loss was lost that may be seen."""
        values = self.recent[name]
        if name == column_of("loss") and not self.private and LOST in values:
            return np.nan
        return mean_of_finite(values)

    def _note(self, number: int, name: str, value: Any) -> None:
        place = number % self.every
        values = self.recent.get(name, np.empty(0, np.float32))
        if place >= values.size:
            more = min(self.every, max(ROOM, 1 << place.bit_length())) - values.size
            values = np.pad(values, (0, more), constant_values=np.nan)
            self.recent[name] = values
        values[place] = value


def column_of(diagnostic: str) -> str:
    """Returns the column of a diagnostic of clients, or of a mechanism.

    >>> column_of("loss"), column_of("train_accuracy"), column_of("mechanism_rejected")
    ('train_loss', 'train_accuracy', 'mechanism_rejected')
    """
    return diagnostic if diagnostic.startswith(OF_CLIENTS) else f"train_{diagnostic}"


def mean_of_finite(values: np.ndarray) -> float:
    """Returns the mean of the values that are finite; NaN if none is."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")


def of_point(reports: Report, place: int) -> Report:
    """Returns the reports of one point of a sweep."""
    return jax.tree.map(lambda leaf: leaf[place], reports)
