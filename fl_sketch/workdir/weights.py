"""The model of a run: its file, and weights that another run begins with."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_sketch.core import files, untrusted_files, validate
from fl_sketch.core.protocols import Tree
from fl_sketch.models import params_io
from fl_sketch.models.params_io import BARE, FORMS, Arrays, load, tree_of
from fl_sketch.transforms import lora
from fl_sketch.workdir import checkpoint

PARAMS = "state/server/params/"  # what their names begin with in a checkpoint
CONFIG, SUMMARY, SIDECAR = "config.json", "summary.json", "params.json"
FILE = "params.safetensors"  # at the end of a run
TRAINED_ON = "trained_on"  # in both json files: names of data sets


def load_params(workdir: str | os.PathLike) -> Tree:
    """Returns the model of a run, after its last checkpoint, or of a release.

    Of a run that has not finished it is the part that trains. It is nested dictionaries
    of numpy arrays for Linen, and a dictionary by path for NNX and Equinox; `Stateful`
    of two, if the model keeps statistics.
    """
    return tree_of(_in_folder(pathlib.Path(workdir)))


def read(source: str) -> Arrays:
    """Returns the arrays of a folder of a run or a release, or of a file."""
    path = pathlib.Path(source).expanduser()
    if path.is_dir():
        return _in_folder(path)
    if not path.is_file():
        msg = "Expected init_from to be the folder of a run or of a release, or a file"
        raise FileNotFoundError(msg + f", got {source!r}.")
    validate.one_of(FORMS, **{"the ending of init_from": path.suffix.removeprefix(".")})
    return _in_file(path)


def trained_on(source: str | os.PathLike) -> tuple[str, ...]:
    """Returns the names of the data sets that weights have seen, as far as is known.

    params.json, or config.json of a run, has them. Nothing is known of other weights.
    """
    path = pathlib.Path(source).expanduser().resolve()
    folder = path if path.is_dir() else path.parent
    for file in filter(pathlib.Path.is_file, (folder / SIDECAR, folder / CONFIG)):
        with untrusted_files.reading(file, "to name its training data"):
            found = dict(json.loads(file.read_text()))
            return tuple(map(str, found.get(TRAINED_ON, ())))
    return ()


def name_of_data(name: str) -> str:
    """Returns the name of a data set without the folder that it is in.

    >>> name_of_data("mnist"), name_of_data("npz//data/people.npz")
    ('mnist', 'people.npz')
    """
    return name.rstrip("/").rpartition("/")[2]


def _in_folder(folder: pathlib.Path) -> Arrays:
    """Returns the model of a release or a finished run, or the newest checkpoint's."""
    finished = (folder / SUMMARY).exists() or not (folder / CONFIG).exists()
    if finished and (folder / FILE).is_file():
        return _in_file(folder / FILE)
    if numbers := checkpoint.rounds(folder / "checkpoints"):
        return _in_checkpoint(folder, numbers[-1])
    msg = f"Expected the folder of a run with a checkpoint, got {folder}."
    raise ValueError(msg)


def _in_file(path: pathlib.Path) -> Arrays:
    with untrusted_files.reading(path, "to hold arrays by name"):
        return load(path)


def _in_checkpoint(folder: pathlib.Path, number: int) -> Arrays:
    """Returns the arrays that train of the model in a run's checkpoint."""
    path = checkpoint.path_of(folder / "checkpoints", number)
    with untrusted_files.reading(path, "to be an unchanged checkpoint"):
        arrays = checkpoint.arrays_below(path, PARAMS) or {
            BARE: checkpoint.array_of(path, PARAMS.rstrip("/"))
        }
    # Safetensors writes the bytes of an array as they lie.
    return {name: np.array(array, order="C") for name, array in arrays.items()}


def write_model(
    folder: pathlib.Path, number: int, frozen: Mapping[str, Any], about: Mapping
) -> str:
    """Writes the model of a run's checkpoint and `frozen` arrays; returns a digest."""
    arrays = _in_checkpoint(folder, number)
    if frozen:
        merged = lora.merged(arrays, {k: np.asarray(v) for k, v in frozen.items()})
        arrays = {name: merged[name] for name in sorted(merged)}
    write_arrays(folder, arrays, {**about, "round": number})
    return params_io.digest(arrays)


def write_arrays(
    folder: pathlib.Path, arrays: Arrays, about: Mapping[str, Any]
) -> None:
    """Writes a model to params.safetensors, and `about` it to params.json."""
    params_io.save(folder / FILE, arrays)
    shapes = {name: list(arrays[name].shape) for name in sorted(arrays)}
    text = json.dumps({**about, "arrays": shapes}, indent=2) + "\n"
    files.write_text(folder / SIDECAR, text)
