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
BEST = "best"  # the folder in that of a sweep
CONFIG, SIDECAR = "config.json", "params.json"
FILE = "params.safetensors"  # at the end of a run
FROZEN = "frozen.npz"  # from its beginning: what does not train, and stays as it is
TRAINED_ON = "trained_on"  # in both json files: names of data sets


def load_params(workdir: str | os.PathLike) -> Tree:
    """Returns the model after the last checkpoint of a run.

    Args:
      workdir: the folder of the run, finished or not, or of a release.

    Returns:
      Nested dictionaries of numpy arrays for Linen, and a dictionary by path for NNX
      and Equinox; `Stateful` of two, if the model keeps statistics.
    """
    return tree_of(_in_folder(pathlib.Path(workdir)))


def read(source: str) -> Arrays:
    """Returns the arrays that a run or a file holds.

    Args:
      source: the folder of a run or of a release, or a file that ends in .npz or
        .safetensors.
    """
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
    for name in (SIDECAR, CONFIG):
        if (folder / name).is_file():
            with untrusted_files.reading(folder / name, "to name its training data"):
                found = dict(json.loads((folder / name).read_text()))
                return tuple(map(str, found.get(TRAINED_ON, ())))
    return ()


def name_of_data(name: str) -> str:
    """Returns the name of a data set without the folder that it is in.

    >>> name_of_data("mnist"), name_of_data("npz//data/people.npz")
    ('mnist', 'people.npz')
    """
    return name.rstrip("/").rpartition("/")[2]


def _in_folder(folder: pathlib.Path) -> Arrays:
    """Returns the model of a run's newest checkpoint, or that of a release."""
    if numbers := checkpoint.rounds(folder / "checkpoints"):
        path = checkpoint.path_of(folder / "checkpoints", numbers[-1])
        return whole(folder, in_checkpoint(path))
    if (folder / FILE).is_file() and not (folder / CONFIG).exists():
        return _in_file(folder / FILE)
    msg = f"Expected the folder of a run with a checkpoint, got {folder}"
    if (folder / BEST / FILE).is_file():
        msg += f" of a sweep: its best model is in {folder / BEST}"
    raise ValueError(msg + ".")


def _in_file(path: pathlib.Path) -> Arrays:
    with untrusted_files.reading(path, "to hold arrays by name"):
        return load(path)


def in_checkpoint(path: pathlib.Path) -> Arrays:
    """Returns the arrays that train of the model in the checkpoint at `path`."""
    with untrusted_files.reading(path, "to be an unchanged checkpoint"):
        arrays = checkpoint.arrays_below(path, PARAMS) or {
            BARE: checkpoint.array_of(path, PARAMS.rstrip("/"))
        }
    # Safetensors writes the bytes of an array as they lie.
    return {name: np.array(array, order="C") for name, array in arrays.items()}


def keep_frozen(
    folder: pathlib.Path, arrays: Mapping[str, Any], *, fresh: bool
) -> None:
    """Writes what does not train of a run's model, by name, to its `folder`.

    Args:
      fresh: whether the run begins; else a file that is there stays.
    """
    if fresh or not (folder / FROZEN).exists():
        with files.replacing(folder / FROZEN) as partial, open(partial, "wb") as file:
            checkpoint.write(file, dict(arrays))


def whole(folder: pathlib.Path, trained: Arrays) -> Arrays:
    """Returns the model of the run in `folder`, of the arrays that trained.

    What does not train must be there, and be that of this run.
    """
    path, expected = folder / FROZEN, ""
    if (folder / CONFIG).is_file():
        with untrusted_files.reading(folder / CONFIG, "to be an unchanged config"):
            about = json.loads((folder / CONFIG).read_text())
            expected = about["identity"].get("frozen", "")
    if not expected and not path.exists():
        return trained
    with untrusted_files.reading(path, "to have what does not train of the run"):
        frozen = checkpoint.arrays_below(path, "") if path.exists() else {}
        if params_io.digest(frozen) != expected:
            msg = f"Expected {path} of this run, got none or that of another."
            raise ValueError(msg)
        merged = lora.merged(trained, frozen)
    return {name: merged[name] for name in sorted(merged)}


def write_model(folder: pathlib.Path, number: int, about: Mapping[str, Any]) -> None:
    """Writes the model of a run's last round, and what is needed to use it, `about`."""
    path = checkpoint.path_of(folder / "checkpoints", number)
    if not path.exists():
        msg = f"Expected {path} with the model of the last round, got none."
        raise ValueError(msg)
    arrays = whole(folder, in_checkpoint(path))
    write_arrays(folder, arrays, {**about, "round": number})


def write_arrays(
    folder: pathlib.Path, arrays: Arrays, about: Mapping[str, Any]
) -> None:
    """Writes a model to params.safetensors, and `about` it to params.json."""
    params_io.save(folder / FILE, arrays)
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    text = json.dumps({**about, "arrays": shapes}, indent=2) + "\n"
    files.write_text(folder / SIDECAR, text)
