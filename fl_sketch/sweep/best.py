"""The best point of a sweep as a run's folder, which can be extended."""

import pathlib
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from fl_sketch import engine
from fl_sketch.core import plugins
from fl_sketch.core.mappings import flat
from fl_sketch.engine.recorder import ABSENCES, Recorder
from fl_sketch.run.setup import Setup
from fl_sketch.run.task import model_of
from fl_sketch.sweep.grid import Axis, Group, changed
from fl_sketch.sweep.tables import ranked
from fl_sketch.workdir import checkpoint, config_file, origin, weights
from fl_sketch.workdir.folder import Workdir

FOLDER = weights.BEST
OWN = ("point", "delta", "randomness", "diverged")  # columns of sweep.csv alone


def keep(
    folder: pathlib.Path,
    rows: Sequence[Mapping[str, Any]],
    axes: Sequence[Axis],
    group: Group,
    setup: Setup,
    recorders: Sequence[Recorder],
    states: engine.State,
) -> None:
    """Writes the best point so far to its own folder, if it is of this program.

    A point that diverged is not kept. `rows` are all rows of the sweep so far, and
    `states` the last states of the group, over seeds and numbers.
    """
    first = ranked(rows, axes)[0]
    place = first["point"] - group.first
    if first["diverged"] or not 0 <= place < len(group.points):
        return
    config, point = changed(group.config, group.points[place]), group.points[place]
    partial, kept = folder / f".{FOLDER}.partial", folder / FOLDER
    for path in (partial, kept):
        if path.is_symlink():  # planted, to be written through
            path.unlink()
    shutil.rmtree(partial, ignore_errors=True)  # of a sweep that was killed
    recorder = recorders[place]
    with Workdir(partial, config.to_dict(), setup.identity) as run:
        mine = [row for row in rows if int(row["point"]) == first["point"]]
        # Older rows have the columns of other programs first.
        ordered = ({name: row[name] for name in mine[-1]} for row in mine)
        run.add(*(_as_of_a_run(row, point) for row in ordered))
        where = divmod(place, len(group.numbers))
        tree = {"state": jax.tree.map(lambda leaf: leaf[where], states)}
        extra, number = {**run.extra(), **recorder.arrays()}, first["round"]
        checkpoint.save(run.checkpoints, number, tree, extra=extra)
        if setup.parts:
            weights.keep_frozen(partial, setup.parts.frozen.tree, fresh=True)
        about = {**model_of(setup), origin.TRAINED_ON: run.trained_on}
        weights.write_model(partial, number, about)
    shutil.rmtree(kept, ignore_errors=True)
    partial.rename(kept)


def ended(folder: pathlib.Path, *, private: bool) -> list[str]:
    """Returns a line on the best point of a sweep that has ended, if it has one.

    A private point is not kept, since its secret is gone and its rounds cannot be
    repeated. A worse point of a program without privacy is then deleted.

    Args:
      folder: that of the sweep.
      private: whether the best point is a private run.
    """
    kept = folder / FOLDER
    if private:
        shutil.rmtree(kept, ignore_errors=True)
        return [
            f"no {FOLDER}/: the best point is a private run, whose model is not kept; "
            "launch.train trains it again and spends its epsilon again"
        ]
    if not kept.is_dir():  # all points diverged
        return []
    return [f"to continue the best point: {_command(kept)}"]


def _command(kept: pathlib.Path) -> str:
    """Returns the command that continues the run in a folder."""
    values = flat(config_file.read(kept / origin.CONFIG).config).values()
    code = ",".join(dict.fromkeys(filter(plugins.named, values)))
    words = ["python", "-m", "launch.train", f"--workdir={kept}", "--extend=ROUNDS"]
    return shlex.join([*words, *[f"--plugin={code}"] * bool(code)])


def _as_of_a_run(row: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row of sweep.csv as metrics.csv has it; its time is not known."""
    # Rows of a sweep have empty columns where another program has absent clients.
    columns = {
        name: value
        for name, value in row.items()
        if name not in (*OWN, *point) and (name not in ABSENCES or value != "")
    }
    return columns | {"rounds_per_second": float("nan")}
