"""Any data as one npz file: a table, say, or features that a network made of images.

Of every part, "train" and "test", the file holds `{part}_inputs`, numbers or strings
[n, ...], and `{part}_targets`, whole numbers from 0 on [n], or [n, length] where every
place of a text has one. It may hold `owners`, which client has each row of training:
integers or strings [n], for `data.partition=natural`.

What a model would train on and never complain of is refused here, by the name of the
array and the first row that is wrong.
"""

import os
import pathlib
import warnings
import zipfile
from collections.abc import Mapping

import numpy as np

from fl_sketch import files
from fl_sketch.data import raw
from fl_sketch.data.examples import Examples, Splits

NAME = "npz"
PARTS = ("train", "test")
ARRAYS = tuple(f"{part}_{kind}" for part in PARTS for kind in ("inputs", "targets"))
OWNERS = "owners"
LARGEST = np.iinfo(np.int32).max


def load(name: str, data_dir: str | os.PathLike | None) -> Splits:
    """Returns the data set "npz/FILE" that the file FILE.npz of a folder holds.

    Floats become float32, integers int32, which are tokens; bytes stay bytes, which are
    pixels; strings are texts. Arrays that nothing reads are warned of.

    Args:
      name: the name: "npz/" and that of the file without its ending.
      data_dir: path of the folder; None: that of FL_SKETCH_DATA.

    Raises:
      FileNotFoundError: for a missing folder or file.
      ValueError: for a file that is damaged or holds anything else.
    """
    folder = raw.folder(data_dir)
    if folder is None:
        msg = f"Expected --data_dir to name the folder of {name}.npz, got none."
        raise FileNotFoundError(msg)
    path = folder / f"{name.partition('/')[2]}.npz"
    if not path.is_file():
        msg = f"Expected {path} for data.name={name}, and it is not there."
        raise FileNotFoundError(msg)
    return checked(name, _read(path), where=str(path))


def checked(name: str, arrays: Mapping[str, np.ndarray], *, where: str) -> Splits:
    """Returns the data set of some arrays, each as a device would hold it.

    Args:
      name: the name of the data set.
      arrays: the arrays by their names, as a file has them.
      where: the place that they are from, for complaints.

    Raises:
      ValueError: in one line, for what is missing or wrong.
    """
    missing = [key for key in ARRAYS if key not in arrays]
    if missing:
        _refuse(where, f"{', '.join(ARRAYS)}", f"no {missing[0]}")
    train, test = (_examples(where, part, arrays) for part in PARTS)
    kinds = [f"{part.dtype} {part.shape[1:]}" for part in (train.inputs, test.inputs)]
    if kinds[0] != kinds[1]:
        _refuse(where, "inputs of one kind and shape", f"{kinds[0]} and {kinds[1]}")
    owners = arrays.get(OWNERS)
    if owners is not None:
        owners = _owners(where, owners, len(train.targets))
    classes = 1 + int(max(part.targets.max() for part in (train, test)))
    return Splits(name, train, test, classes, owners, learnt=("classes", 0))


def save(
    path: str | os.PathLike,
    train: Examples,
    test: Examples,
    owners: np.ndarray | None = None,
) -> None:
    """Writes a file that `load` reads; a reader never sees half of it.

    Args:
      path: path of the file, which should end in ".npz".
      train: the examples to train on.
      test: the examples to test on.
      owners: the owner of each row of `train`, integers or strings; None: not said.
    """
    with files.replacing(path) as partial, open(partial, "wb") as file:
        arrays = (train.inputs, train.targets, test.inputs, test.targets)
        named = dict(zip(ARRAYS, arrays, strict=True))
        if owners is not None:
            named[OWNERS] = np.asarray(owners)
        np.savez(file, allow_pickle=False, **named)


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a file."""
    try:
        # Opened here, since numpy leaves a damaged file open.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
            unread = [key for key in found if key not in (*ARRAYS, OWNERS)]
            if unread:
                text = f"nothing reads {', '.join(unread)} of {path}"
                warnings.warn(text, stacklevel=4)
            return {key: found[key] for key in found if key not in unread}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        msg = f"Expected {path} to hold {', '.join(ARRAYS)}, got {error}."
        raise ValueError(" ".join(msg.split())) from None


def _examples(where: str, part: str, arrays) -> Examples:
    inputs = _inputs(where, f"{part}_inputs", arrays[f"{part}_inputs"])
    targets = _targets(where, f"{part}_targets", arrays[f"{part}_targets"])
    if len(inputs) != len(targets):
        _refuse(
            where,
            f"as many {part} targets as inputs",
            f"{len(targets)} for {len(inputs)}",
        )
    return Examples(inputs, targets)


def _inputs(where: str, name: str, inputs: np.ndarray) -> np.ndarray:
    kind = inputs.dtype.kind
    if kind not in "fiuUb" or not inputs.ndim or not len(inputs):
        _refuse(where, f"{name} of numbers or strings, one at least", _said(inputs))
    if kind == "U":
        if inputs.ndim != 1:
            _refuse(where, f"{name} of one text for each example", _said(inputs))
        return inputs.astype(object)
    if inputs.dtype == np.uint8:
        return inputs
    if kind == "f":
        with np.errstate(over="ignore"):
            inputs = inputs.astype(np.float32)
        _require(where, f"finite numbers in {name}", inputs, np.isfinite)
        return inputs
    _require(where, f"integers of 32 bits in {name}", inputs, _fits)
    return inputs.astype(np.int32)


def _targets(where: str, name: str, targets: np.ndarray) -> np.ndarray:
    if (
        targets.dtype.kind not in "fiub"
        or targets.ndim not in (1, 2)
        or not len(targets)
    ):
        _refuse(where, f"{name} of whole numbers, one at least", _said(targets))

    def whole(values):
        # Compared before they are cut: 0.7 would be a 0, and NaN anything.
        return (values >= 0) & (values <= LARGEST) & (values == np.floor(values))

    _require(where, f"whole numbers from 0 on in {name}", targets, whole)
    return targets.astype(np.int32)


def _owners(where: str, owners: np.ndarray, count: int) -> np.ndarray:
    """Returns the number of the owner of each row, in the order of their names."""
    if owners.dtype.kind not in "iuUS" or owners.shape != (count,):
        _refuse(
            where,
            f"{OWNERS} to be {count} integers or strings, one for each row of training",
            _said(owners),
        )
    return np.unique(owners, return_inverse=True)[1].astype(np.int32)


def _fits(values: np.ndarray) -> np.ndarray:
    return (values >= -LARGEST) & (values <= LARGEST)


def _require(where: str, what: str, values: np.ndarray, right) -> None:
    """Raises for the first of some values that is not right, naming its row."""
    wrong = ~right(values)
    if wrong.any():
        place = tuple(int(axis) for axis in np.argwhere(wrong)[0])
        _refuse(where, what, f"{values[place]} in row {place[0]}")


def _said(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _refuse(where: str, expected: str, found: str) -> None:
    msg = f"Expected {expected} in {where}, got {found}."
    raise ValueError(msg)
