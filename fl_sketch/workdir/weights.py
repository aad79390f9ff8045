"""The model of a run: its file, and weights that another run begins with."""

import contextlib
import json
import os
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_sketch.core import files, validate
from fl_sketch.core.protocols import Tree
from fl_sketch.models import params_io
from fl_sketch.models.params_io import BARE, FORMS, Arrays, load, tree_of
from fl_sketch.transforms import lora
from fl_sketch.workdir import checkpoint, origin
from fl_sketch.workdir.origin import SIDECAR, TRAINED_ON

PARAMS = "state/server/params/"  # what their names begin with in a checkpoint
FILE = "params.safetensors"  # at the end of a run
FROZEN = "frozen.npz"  # from its beginning: what does not train, and stays as it is


def load_params(workdir: str | os.PathLike) -> Tree:
    """Returns the model after the last checkpoint of a run.

    Args:
      workdir: the folder of the run, finished or not, or of a release.

    Returns:
      Nested dictionaries of numpy arrays for Linen, and a dictionary by path for NNX
      and Equinox; `Stateful` of two, if the model keeps statistics.

    Raises:
      ValueError: in one line, for a folder without a checkpoint that can be read.
    """
    folder = pathlib.Path(workdir)
    file = origin.released(folder)
    return tree_of(_in_file(file) if file else in_run(folder))


def in_run(folder: pathlib.Path) -> Arrays:
    """Returns the arrays of the newest checkpoint in the `folder` of a run.

    It warns of a damaged one, and passes over it.

    Raises:
      ValueError: in one line, if there is none that can be read.
    """
    checkpoints = folder / "checkpoints"
    for number in reversed(checkpoint.rounds(checkpoints)):
        path = checkpoint.path_of(checkpoints, number)
        try:
            trained = in_checkpoint(path)
        except Exception as error:  # zipfile and numpy raise a dozen kinds
            text = f"{path} is damaged ({error}); using the model of an earlier round"
            warnings.warn(" ".join(text.split()), stacklevel=2)
        else:
            return whole(folder, trained)
    msg = f"Expected the folder of a run with a checkpoint, got {folder}."
    raise ValueError(msg)


def keep_frozen(
    folder: pathlib.Path, arrays: Mapping[str, Any], *, fresh: bool
) -> None:
    """Writes what does not train of a run's model, by name, to its `folder`.

    Args:
      fresh: whether the run begins; else a file that is there stays.
    """
    if not fresh and (folder / FROZEN).exists():
        return
    with files.replacing(folder / FROZEN) as partial, open(partial, "wb") as file:
        checkpoint.write(file, dict(arrays))


def whole(folder: pathlib.Path, trained: Arrays) -> Arrays:
    """Returns the model of the run in `folder`, of the arrays that trained.

    Raises:
      ValueError: in one line, if what does not train is missing, damaged or another's.
    """
    path, expected = folder / FROZEN, ""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        about = json.loads((folder / origin.CONFIG).read_text())
        expected = about.get("identity", {}).get("frozen", "")
    if not expected and not path.exists():
        return trained
    try:
        frozen = checkpoint.arrays_below(path, "")
        wrong = "" if params_io.digest(frozen) == expected else "that of another run"
        merged = {} if wrong else lora.merged(trained, frozen)
    except Exception as error:  # zipfile and numpy raise a dozen kinds
        wrong, merged = str(error), {}
    if wrong:
        msg = f"Expected {path} with what does not train of the run, got {wrong}."
        raise ValueError(" ".join(msg.split()))
    return {name: merged[name] for name in sorted(merged)}


def in_checkpoint(path: pathlib.Path) -> Arrays:
    """Returns the arrays that train of the model in the checkpoint at `path`."""
    arrays = checkpoint.arrays_below(path, PARAMS) or {
        BARE: checkpoint.array_of(path, PARAMS.rstrip("/"))
    }
    # Safetensors writes the bytes of an array as they lie.
    return {name: np.array(array, order="C") for name, array in arrays.items()}


def read(source: str) -> Arrays:
    """Returns the arrays that a run or a file holds.

    Args:
      source: the folder of a run or of a release, or a file that ends in .npz or
        .safetensors.

    Raises:
      FileNotFoundError, ValueError: in one line, for anything else.
    """
    path = pathlib.Path(source).expanduser()
    path = origin.released(path) or path
    if path.is_dir():
        return in_run(path)
    if not path.is_file():
        msg = "Expected init_from to be the folder of a run or of a release, or a file"
        raise FileNotFoundError(msg + f", got {source!r}.")
    validate.one_of(FORMS, **{"the ending of init_from": path.suffix.removeprefix(".")})
    return _in_file(path)


def _in_file(path: pathlib.Path) -> Arrays:
    """Returns the arrays in a file; raises a ValueError in one line if it has none."""
    try:
        return load(path)
    except Exception as error:  # zipfile, numpy and safetensors raise a dozen kinds
        msg = f"Expected {path} to hold arrays by name, got {error}."
        raise ValueError(" ".join(msg.split())) from None


def save(
    path: pathlib.Path, arrays: Arrays, record: origin.Record, *, released: bool = False
) -> None:
    """Writes `arrays` to the file `path`, in the form of its ending.

    Args:
      record: what they have seen, which the file says too.
      released: whether all may have the file.
    """
    text = origin.text_of(record, released=released)
    params_io.save(path, arrays, {TRAINED_ON: text})


def write_model(folder: pathlib.Path, number: int, about: Mapping[str, Any]) -> None:
    """Writes the model of a run's last round, and what is needed to use it, `about`.

    Raises:
      ValueError: unless round `number` has a checkpoint that can be read.
    """
    path = checkpoint.path_of(folder / "checkpoints", number)
    try:
        arrays = in_checkpoint(path)
    except Exception as error:  # zipfile and numpy raise a dozen kinds
        msg = f"Expected {path} with the model of the last round, got {error}."
        raise ValueError(" ".join(msg.split())) from None
    arrays = whole(folder, arrays)
    save(folder / FILE, arrays, about[TRAINED_ON])
    texts = {**about, "round": number, **arrays_of(arrays)}
    files.write_text(folder / SIDECAR, json.dumps(texts, indent=2) + "\n")


def arrays_of(arrays: Arrays) -> dict[str, Any]:
    """Returns what params.json says of a model's arrays: their shapes."""
    return {"arrays": {name: list(array.shape) for name, array in arrays.items()}}
