"""The model of the best point of a sweep, in a folder of its own."""

import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fl_sketch import engine
from fl_sketch.config.initial import seen_by_model
from fl_sketch.core.trees import named_leaves
from fl_sketch.models.params_io import BARE, Arrays
from fl_sketch.run.setup import Setup
from fl_sketch.run.task import model_of
from fl_sketch.sweep.grid import Axis, Group, changed
from fl_sketch.sweep.tables import ranked
from fl_sketch.transforms import lora
from fl_sketch.workdir import weights

FOLDER = weights.BEST


def keep(
    folder: pathlib.Path,
    rows: Sequence[Mapping[str, Any]],
    axes: Sequence[Axis],
    group: Group,
    setup: Setup,
    states: engine.State,
) -> None:
    """Writes the model of the best point so far, if it is of this program.

    A point that diverged is not kept. `rows` are all rows of the sweep so far, and
    `states` the last states of the group, over seeds and numbers.
    """
    first = ranked(rows, axes)[0]
    place = first["point"] - group.first
    if first["diverged"] or not 0 <= place < len(group.points):
        return
    partial, kept = folder / f".{FOLDER}.partial", folder / FOLDER
    for path in (partial, kept):
        if path.is_symlink():  # planted, to be written through
            path.unlink()
    shutil.rmtree(partial, ignore_errors=True)  # of a sweep that was killed
    partial.mkdir()
    where = divmod(place, len(group.numbers))
    params = jax.tree.map(lambda leaf: leaf[where], states.server.params)
    arrays: Arrays = {n or BARE: np.asarray(x) for n, x in named_leaves(params)}
    if setup.parts:
        arrays = lora.merged(arrays, setup.parts.frozen.tree)
    config = changed(group.config, group.points[place])
    seen = sorted(seen_by_model(config))
    about = {**model_of(setup), weights.TRAINED_ON: seen, "round": first["round"]}
    weights.write_arrays(partial, dict(sorted(arrays.items())), about)
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
    return [f"the model of the best point: {kept}"] if kept.is_dir() else []
