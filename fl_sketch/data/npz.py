"""Any data as one npz file: a table, say, or features that a network made of images.

Of every part, "train" and "test", the file holds `{part}_inputs`, numbers or strings
[n, ...], and `{part}_targets`: classes are whole numbers from 0 on [n], or [n, length]
where every place of a text has one; labels are zeros and ones [n, labels]; numbers are
floats [n] or [n, numbers]. Which of these they are `model.loss` says. The file may hold
a third part, "validation", by which searches choose, and `owners`, which client has
each row of training: integers or strings [n], for `data.partition=natural`.

What a model would train on and never complain of is refused here, by the name of the
array and the first row that is wrong.
"""

import os
import pathlib
import warnings
import zipfile
from collections.abc import Mapping

import numpy as np

from fl_sketch.core import files, untrusted_files
from fl_sketch.data import raw
from fl_sketch.data.examples import Examples, Splits

NAME = "npz"
PARTS = ("train", "test")
KINDS = ("inputs", "targets")
ARRAYS = tuple(f"{part}_{kind}" for part in PARTS for kind in KINDS)
VALIDATION = tuple(f"validation_{kind}" for kind in KINDS)
OWNERS = "owners"
CLASSES, LABELS, NUMBERS = "classes", "labels", "numbers"  # what targets may be
READ = (*ARRAYS, *VALIDATION, OWNERS)
LARGEST = np.iinfo(np.int32).max
MOST = 2**24  # classes, above which a model's last layer has no place


def load(
    name: str, data_dir: str | os.PathLike | None, targets: str = CLASSES
) -> Splits:
    """Returns the data set "npz/FILE" that the file FILE.npz of a folder holds.

    Floats become float32, integers int32, which are tokens; bytes stay bytes, which are
    pixels; strings are texts. Arrays that nothing reads are warned of.

    Args:
      name: the name: "npz/" and that of the file without its ending.
      data_dir: path of the folder; None: that of FL_SKETCH_DATA.
      targets: the kind of the targets.

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
    return checked(name, _read(path), where=str(path), targets=targets)


def checked(
    name: str,
    arrays: Mapping[str, np.ndarray],
    *,
    where: str,
    targets: str = CLASSES,
) -> Splits:
    """Returns the data set of some arrays, each as a device would hold it.

    Args:
      name: the name of the data set.
      arrays: the arrays by their names, as a file has them.
      where: the place that they are from, for complaints.
      targets: the kind of the targets: `CLASSES`, `LABELS` or `NUMBERS`.

    Raises:
      ValueError: in one line, for what is missing or wrong.
    """
    third = any(key in arrays for key in VALIDATION)
    wanted = (*ARRAYS, *VALIDATION) if third else ARRAYS
    missing = [key for key in wanted if key not in arrays]
    if missing:
        _refuse(where, ", ".join(wanted), f"no {missing[0]}")
    parts = (*PARTS, "validation") if third else PARTS
    read = {part: _examples(where, part, arrays, targets) for part in parts}
    for kind in KINDS:
        _require_alike(where, kind, [getattr(part, kind) for part in read.values()])
    owners = arrays.get(OWNERS)
    if owners is not None:
        owners = _owners(where, owners, len(read["train"].targets))
    if targets == CLASSES:
        classes = 1 + int(max(part.targets.max() for part in read.values()))
    else:
        classes = read["train"].targets.shape[1]
    learnt = ("classes", 0) if targets == CLASSES else None
    return Splits(name, classes=classes, owners=owners, learnt=learnt, **read)


def save(
    path: str | os.PathLike,
    train: Examples,
    test: Examples,
    owners: np.ndarray | None = None,
    validation: Examples | None = None,
) -> None:
    """Writes a file that `load` reads; a reader never sees half of it.

    Args:
      path: path of the file, which should end in ".npz".
      train: the examples to train on.
      test: the examples to test on.
      owners: the owner of each row of `train`, integers or strings; None: not said.
      validation: the examples to choose by; None: none.
    """
    with files.replacing(path) as partial, open(partial, "wb") as file:
        parts = (*train, *test, *(validation or ()))
        named = dict(zip((*ARRAYS, *VALIDATION), parts, strict=False))
        if owners is not None:
            named[OWNERS] = np.asarray(owners)
        np.savez(file, allow_pickle=False, **named)


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a file."""
    if not zipfile.is_zipfile(path):
        msg = f"Expected {path} to hold {', '.join(ARRAYS)}, got no npz file at all."
        raise ValueError(msg)
    what = f"to hold {', '.join(ARRAYS)}"
    with untrusted_files.reading(path, what):
        untrusted_files.require_arrays_fit(path)
        # Opened here, since numpy leaves a damaged file open.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
            unread = [key for key in found.files if key not in READ]
            if unread:
                text = f"nothing reads {', '.join(unread)} of {path}"
                warnings.warn(text, stacklevel=4)
            return {key: _one(found, key) for key in found.files if key in READ}


def _one(found: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    """Returns the array of a file with this name."""
    try:
        return found[key]
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        msg = f"{key} of Python objects: .astype(str) or .astype(float) makes an array"
        raise ValueError(msg) from None


def _examples(where: str, part: str, arrays, kind: str) -> Examples:
    inputs = _inputs(where, f"{part}_inputs", arrays[f"{part}_inputs"])
    read = {CLASSES: _classes, LABELS: _labels, NUMBERS: _numbers}[kind]
    targets = read(where, f"{part}_targets", arrays[f"{part}_targets"])
    if len(inputs) != len(targets):
        _refuse(
            where,
            f"as many {part} targets as inputs",
            f"{len(targets)} for {len(inputs)}",
        )
    return Examples(inputs, targets)


def _inputs(where: str, name: str, inputs: np.ndarray) -> np.ndarray:
    kind = inputs.dtype.kind
    if kind not in "fiuUb" or not inputs.ndim or not inputs.size:
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


def _require_alike(where: str, kind: str, arrays: list[np.ndarray]) -> None:
    """Raises unless the arrays of all parts have one type and shape of an example."""
    found = dict.fromkeys(f"{array.dtype} {array.shape[1:]}" for array in arrays)
    if len(found) > 1:
        _refuse(where, f"{kind} of one kind and shape", " and ".join(found))


def _numbers(where: str, name: str, targets: np.ndarray) -> np.ndarray:
    if (
        targets.dtype.kind not in "fiu"
        or targets.ndim not in (1, 2)
        or not targets.size
    ):
        _refuse(where, f"{name} of numbers, one at least", _said(targets))
    with np.errstate(over="ignore"):
        targets = targets.astype(np.float32)
    _require(where, f"finite numbers in {name}", targets, np.isfinite)
    return targets.reshape(len(targets), -1)


def _labels(where: str, name: str, targets: np.ndarray) -> np.ndarray:
    if targets.dtype.kind not in "fiub" or targets.ndim > 2 or not targets.size:
        _refuse(where, f"{name} of zeros and ones, a column a label", _said(targets))
    _require(where, f"zeros and ones in {name}", targets, lambda x: (x == 0) | (x == 1))
    return targets.astype(np.float32).reshape(len(targets), -1)


def _classes(where: str, name: str, targets: np.ndarray) -> np.ndarray:
    if (
        targets.dtype.kind not in "fiub"
        or targets.ndim not in (1, 2)
        or not targets.size
    ):
        _refuse(where, f"{name} of whole numbers, one at least", _said(targets))

    def whole(values):
        # Compared before they are cut: 0.7 would be a 0, and NaN anything.
        return (values >= 0) & (values <= LARGEST) & (values == np.floor(values))

    said = f"whole numbers from 0 on in {name}, which are classes by model.loss"
    _require(where, said, targets, whole)
    said = f"classes below {MOST:,} in {name}"
    _require(where, said, targets, lambda values: values < MOST)
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
