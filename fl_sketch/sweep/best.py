"""The best point of a sweep as a run's folder, which goes on without training again."""

import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fl_sketch import engine
from fl_sketch.engine.recorder import ABSENCES, Recorder
from fl_sketch.run.run import write_edges
from fl_sketch.sweep.grid import Axis, Group
from fl_sketch.sweep.tables import ranked
from fl_sketch.workdir import checkpoint, weights
from fl_sketch.workdir.folder import Workdir
from fl_sketch.workdir.identity import Identity

FOLDER = weights.BEST
OWN = ("point", "delta", "randomness", "diverged")  # columns of sweep.csv alone
Row = dict[str, Any]


class Ended(NamedTuple):
    """A program that has ended.

    Attributes:
      states: the last states of its points, over seeds and numbers.
      about: what params.json is to hold.
    """

    group: Group
    states: engine.State
    recorders: Sequence[Recorder]
    about: Mapping[str, Any]
    identity: Identity


def keep(
    folder: pathlib.Path,
    rows: Sequence[Mapping[str, Any]],
    axes: Sequence[Axis],
    ended: Ended,
) -> None:
    """Leaves the best point so far in a folder of its own, if it is of this program.

    A point that diverged is not kept.

    Args:
      folder: the folder of the sweep.
      rows: all rows of the sweep so far.
    """
    group = ended.group
    first = ranked(rows, axes)[0]
    place = first["point"] - group.first
    if first["diverged"] or not 0 <= place < len(group.points):
        return
    config = group.config.copy_and_resolve_references()
    config.update_from_flattened_dict(group.points[place])
    partial, kept = folder / f".{FOLDER}.partial", folder / FOLDER
    for path in (partial, kept):
        if path.is_symlink():  # planted, to be written through
            path.unlink()
    shutil.rmtree(partial, ignore_errors=True)  # of a sweep that was killed
    recorder = ended.recorders[place]
    with Workdir(partial, config.to_dict(), ended.identity) as run:
        points = [row for row in rows if int(row["point"]) == first["point"]]
        run.add(*(_as_of_a_run(row, group.points[place]) for row in points))
        where = divmod(place, len(group.numbers))
        state = jax.tree.map(lambda leaf: leaf[where], ended.states)
        extra = {**run.extra(), **recorder.arrays()}
        tree, number = {"state": state}, first["round"]
        checkpoint.save(run.checkpoints, number, tree, extra=extra)
        about = {**ended.about, weights.TRAINED_ON: run.trained_on}
        weights.write_model(partial, number, about)
        if relay := recorder.known.prices.relay:
            write_edges(partial, relay, int(recorder.ledger.up.sum()))
    shutil.rmtree(kept, ignore_errors=True)
    partial.rename(kept)


def _as_of_a_run(row: Mapping[str, Any], point: Mapping[str, Any]) -> Row:
    """Returns a row of sweep.csv as metrics.csv has it; its time is not known."""
    skipped = (*OWN, *point)
    kept = {name: value for name, value in row.items() if name not in skipped}
    # Rows of a sweep have empty columns where another program has absent clients.
    kept = {n: v for n, v in kept.items() if n not in ABSENCES or v != ""}
    return kept | {"rounds_per_second": float("nan")}
