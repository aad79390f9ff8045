"""The best point of a sweep as a run's folder, which goes on without training again."""

import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fl_sketch import engine
from fl_sketch.config import networks
from fl_sketch.engine import ledger
from fl_sketch.run import nodes
from fl_sketch.run.loop import MESSY, Progress
from fl_sketch.sweep.grid import Axis, Group
from fl_sketch.sweep.tables import ranked
from fl_sketch.workdir import checkpoint, weights
from fl_sketch.workdir.folder import Workdir
from fl_sketch.workdir.identity import Identity

FOLDER = weights.BEST
OWN = ("point", "delta", "randomness", "diverged")  # columns of sweep.csv alone
Row = dict[str, Any]


class Notes(NamedTuple):
    """What is noted of the points of a program, each at its place.

    Attributes:
      books: the bytes of each.
      losses: the losses of the rounds since the last row, NaN if nobody took part.
      noised: the same of what was released beside the models in these rounds.
      diverged: the round in which a point diverged, from one; 0: it did not.
    """

    books: list[ledger.Ledger]
    losses: np.ndarray
    noised: dict[str, np.ndarray]
    diverged: np.ndarray

    @classmethod
    def empty(cls, points: int, clients: int, rounds: int, noised: Sequence[str]):
        """Returns notes of so many `points`, between `rounds` rounds from row to row.

        Each has as many `clients`, and releases what is `noised` beside its model.
        """

        def nothing():
            return np.full((points, rounds), np.nan, np.float32)

        return cls(
            [ledger.empty(clients) for _ in range(points)],
            nothing(),
            {name: nothing() for name in noised},
            np.zeros(points, np.int64),
        )


class Ended(NamedTuple):
    """What a program has come to.

    Attributes:
      group: its points.
      states: their last states, over seeds and numbers.
      notes: what was noted of them.
      about: what one must know to use their models elsewhere.
      identity: what they are made of beside their configs.
    """

    group: Group
    states: engine.State
    notes: Notes
    about: Mapping[str, Any]
    identity: Identity


def keep(
    folder: pathlib.Path,
    rows: Sequence[Mapping[str, Any]],
    axes: Sequence[Axis],
    ended: Ended,
) -> None:
    """Leaves the best point so far in a folder of its own, if it is of this program.

    Nothing is kept of a point that diverged.

    Args:
      folder: the folder of the sweep.
      rows: all rows of the sweep so far.
      axes: the axes of the grid.
      ended: the program that has ended.
    """
    group, states, notes, about, identity = ended
    first = ranked(rows, axes)[0]
    place = first["point"] - group.first
    if first["diverged"] or not 0 <= place < len(group.points):
        return
    config = group.config.copy_and_resolve_references()
    config.update_from_flattened_dict(group.points[place])
    partial, kept = folder / f".{FOLDER}.partial", folder / FOLDER
    for own in (partial, kept):
        if own.is_symlink():  # planted, to be written through
            own.unlink()
    shutil.rmtree(partial, ignore_errors=True)  # of a sweep that was killed
    with Workdir(partial, config.to_dict(), identity=identity) as run:
        own = [row for row in rows if int(row["point"]) == first["point"]]
        run.add(*(_as_of_a_run(row, group.points[place]) for row in own))
        progress = Progress(
            _of_point(states, place, len(group.numbers)),
            notes.books[place],
            notes.losses[place],
            {name: values[place] for name, values in notes.noised.items()},
            np.float64(0),
        )
        beside = run.beside()
        checkpoint.save(run.checkpoints, first["round"], progress, beside=beside)
        weights.take_away(partial, first["round"], about)
        if relay := networks.relay_of(config):
            nodes.write_edges(partial, relay, int(progress.ledger.up.sum()))
    shutil.rmtree(kept, ignore_errors=True)
    partial.rename(kept)


def _of_point(states: engine.State, place: int, numbers: int) -> engine.State:
    """Returns the state of a point, of states over seeds and numbers."""
    return jax.tree.map(lambda leaf: leaf[divmod(place, numbers)], states)


def _as_of_a_run(row: Mapping[str, Any], point: Mapping[str, Any]) -> Row:
    """Returns a row of sweep.csv as metrics.csv has it; nobody timed it alone."""

    def own(name: str) -> bool:
        # Of who was absent a sweep's rows say nothing where its point has no such.
        return name not in (*OWN, *point) and (name not in MESSY or row[name] != "")

    kept = {name: value for name, value in row.items() if own(name)}
    return kept | {"rounds_per_second": float("nan")}
