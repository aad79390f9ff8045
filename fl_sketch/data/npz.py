"""Arrays of one's own: one npz file, or a folder with an npy file for each array.

For each part, "train" and "test", there are `{part}_inputs`, numbers or strings
[n, ...], and `{part}_targets`: classes are whole numbers from 0 on [n], or [n, length]
where every place of a text has one; labels are zeros and ones [n, labels]; numbers are
floats [n] or [n, numbers]. `model.loss` decides which of these they are. There may be

- a third part, "validation", by which searches choose;
- `owners`, the client of each row of training: integers or strings [n], for
  `data.partition=natural`;
- `class_names`, strings: a name for each class or label;
- `vocabulary`, strings: the words whose numbers integer inputs are, the first of which
  has the number `tokens.SPECIAL`;
- `learnt`, strings [n]: the names of what was found in the training data, such as
  "vocabulary". Private runs refuse such a file.

Arrays of a folder are mapped into memory, and read as they are needed. Wrong arrays on
which a model would train without an error are refused in one line.
"""

import os
import pathlib
import warnings
import zipfile
from collections.abc import Callable, Mapping
from typing import NoReturn

import numpy as np

from fl_sketch.core import files, tokens, untrusted_files
from fl_sketch.data import raw
from fl_sketch.data.examples import Examples, Splits, from_parts
from fl_sketch.data.tokenizer import WORDS, Table

NAME = "npz"
PARTS = ("train", "test")
KINDS = ("inputs", "targets")
ARRAYS = tuple(f"{part}_{kind}" for part in PARTS for kind in KINDS)
VALIDATION = tuple(f"validation_{kind}" for kind in KINDS)
OWNERS, LEARNT = "owners", "learnt"
CLASS_NAMES, VOCABULARY = "class_names", "vocabulary"
READ = (*ARRAYS, *VALIDATION, OWNERS, LEARNT, CLASS_NAMES, VOCABULARY)
CLASSES, LABELS, NUMBERS = "classes", "labels", "numbers"  # kinds of targets
LARGEST = np.iinfo(np.int32).max
MOST = 2**24  # classes, above which a model's last layer does not fit
ROWS = 2**14  # that are checked together, so that a large file is not copied


def load(
    name: str,
    data_dir: str | os.PathLike | None,
    targets: str = CLASSES,
    *,
    finite: bool = True,
) -> Splits:
    """Returns the data set "npz/FILE" of FILE.npz or of the folder FILE.

    Floats become float32, and integers int32, which are tokens; bytes stay bytes, which
    are pixels; strings are texts. There is a warning for arrays that nothing reads.
    Other arguments are those of `datasets.load` and `checked`.
    """
    data, file = raw.folder(data_dir), name.partition("/")[2]
    if data is None:
        msg = f"Expected --data_dir to name the folder of {file}.npz, got none."
        raise FileNotFoundError(msg)
    path = data / f"{file}.npz"
    if not path.is_file():
        path = data / file
    if not file or not path.exists():
        msg = f"Expected {path}.npz or the folder {path} with data.name={name}, got "
        raise FileNotFoundError(msg + "neither.")
    return checked(name, _read(path), where=str(path), targets=targets, finite=finite)


def one_part(
    path: str | os.PathLike, part: str, targets: str = CLASSES, *, finite: bool = True
) -> Splits:
    """Returns the data set of a file that needs to have one part only.

    The other part, where the file lacks it, is one example of zeros in its place. Other
    arguments are those of `checked`.
    """
    place, (other,) = pathlib.Path(path), {*PARTS} - {part}
    if not place.exists():
        msg = f"Expected an npz file with the examples, got no {place}."
        raise FileNotFoundError(msg)
    arrays = _read(place)
    for kind in KINDS:
        own = arrays.get(f"{part}_{kind}")
        if own is not None and own.ndim and f"{other}_{kind}" not in arrays:
            arrays[f"{other}_{kind}"] = np.zeros((1, *own.shape[1:]), own.dtype)
    arrays.pop(OWNERS, None)
    return checked(str(place), arrays, where=str(place), targets=targets, finite=finite)


def save(
    path: str | os.PathLike,
    train: Examples,
    test: Examples,
    owners: np.ndarray | None = None,
    validation: Examples | None = None,
) -> None:
    """Writes what `load` reads: see `write`."""
    parts = (*train, *test, *(validation or ()))
    arrays = dict(zip((*ARRAYS, *VALIDATION), parts, strict=False))
    write(path, arrays | ({} if owners is None else {OWNERS: np.asarray(owners)}))


def write(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by their names, in one step: NAME.npz, or a new folder of npy."""
    path = pathlib.Path(path)
    if path.suffix == ".npz":
        with files.replacing(path) as partial, open(partial, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        return
    partial = path.with_name(f".{path.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(partial / f"{name}.npy", array, allow_pickle=False)
    partial.rename(path)


def checked(
    name: str,
    arrays: Mapping[str, np.ndarray],
    *,
    where: str,
    targets: str = CLASSES,
    finite: bool = True,
) -> Splits:
    """Returns the data set of some arrays, each as a device would hold it.

    Args:
      name: the name of the data set.
      arrays: the arrays by name, as in a file.
      where: their source, for errors.
      targets: the kind of the targets: `CLASSES`, `LABELS` or `NUMBERS`.
      finite: whether training data must be finite, and of the classes. Private runs do
        not require it, since a refusal would tell of a client: what is not finite makes
        a loss that is not, and its client has no influence.
    """
    three = any(key in arrays for key in VALIDATION)
    for key in (*ARRAYS, *VALIDATION) if three else ARRAYS:
        if key not in arrays:
            given = ", ".join(arrays) or "none"
            _refuse(where, ", ".join(ARRAYS), f"no {key} among {given}")
    parts = {}
    for part in (*PARTS, "validation") if three else PARTS:
        first, second = (f"{part}_{kind}" for kind in KINDS)
        whole = finite or part != "train"
        inputs = _inputs(where, first, arrays[first], whole)
        values = _targets(where, second, arrays[second], targets, whole)
        if len(inputs) != len(values):
            counts = f"{len(values)} for {len(inputs)}"
            _refuse(where, f"as many {part} targets as inputs", counts)
        parts[part] = Examples(inputs, values)
    for kind in KINDS:
        alike = [getattr(part, kind) for part in parts.values()]
        shapes = dict.fromkeys(f"{array.dtype} {array.shape[1:]}" for array in alike)
        if len(shapes) > 1:
            _refuse(where, f"{kind} of one type and shape", " and ".join(shapes))
    width = 0 if targets == CLASSES else parts["train"].targets.shape[1]
    splits = from_parts(name, parts, width)
    if OWNERS in arrays:
        owners, names = _owners(where, arrays[OWNERS], len(parts["train"].targets))
        splits = splits._replace(owners=owners, owner_names=names)
    class_names = _names(where, CLASS_NAMES, arrays)
    if finite and class_names and len(class_names) < splits.classes:
        got = f"{len(class_names)} names"
        _refuse(where, f"{CLASS_NAMES} for {splits.classes} classes", got)
    marks = _names(where, LEARNT, arrays)
    return splits._replace(
        learnt=(*splits.learnt, *((mark, f"found in {name}") for mark in marks)),
        class_names=class_names,
        tokenizer=_table(where, arrays, parts["train"].inputs, VOCABULARY in marks),
    )


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays of an npz file or of a folder that `checked` knows."""
    what = f"to hold {', '.join(ARRAYS)}"
    if path.is_dir():
        names = sorted(file.stem for file in path.glob("*.npy"))
    elif zipfile.is_zipfile(path):
        with untrusted_files.reading(path, what):
            untrusted_files.require_arrays_fit(path)
            with zipfile.ZipFile(path) as archive:
                names = [entry.removesuffix(".npy") for entry in archive.namelist()]
    else:
        msg = f"Expected {path} {what}, got no npz file."
        raise ValueError(msg)
    if unread := [name for name in names if name not in READ]:
        text = f"{path} has arrays that are not read: {', '.join(unread)}"
        warnings.warn(text, stacklevel=4)
    arrays = {}
    for name in (name for name in READ if name in names):
        with untrusted_files.reading(f"{name} in {path}", "to be numbers or strings"):
            if path.is_dir():
                mapped = np.load(path / f"{name}.npy", mmap_mode="r")
                arrays[name] = np.asarray(mapped)
                continue
            # Opened here, since numpy leaves a damaged file open.
            with open(path, "rb") as file, np.load(file) as archive:
                arrays[name] = archive[name]
    return arrays


def _inputs(where: str, name: str, inputs: np.ndarray, finite: bool) -> np.ndarray:
    kind = inputs.dtype.kind
    if kind not in "fiubSU" or not inputs.ndim or not inputs.size:
        _refuse(where, f"{name} of numbers or strings, not empty", _about(inputs))
    if kind in "SU":
        if inputs.ndim != 1:
            _refuse(where, f"{name} of one text per example", _about(inputs))
        return _texts(where, name, inputs).astype(object)
    if inputs.dtype == np.uint8:
        return inputs
    if kind == "f":
        return _floats(where, name, inputs, finite)
    if not finite:
        return np.clip(inputs, -LARGEST, LARGEST).astype(np.int32)
    what = f"integers of 32 bits in {name}"
    _require(where, what, inputs, lambda x: (x >= -LARGEST) & (x <= LARGEST))
    return inputs.astype(np.int32, copy=False)


def _targets(
    where: str, name: str, targets: np.ndarray, kind: str, finite: bool
) -> np.ndarray:
    numbers = targets.dtype.kind in "fiub" and targets.ndim in (1, 2)
    if not numbers or not targets.size:
        _refuse(where, f"{name} of {kind} [n] or [n, m], not empty", _about(targets))
    if kind == CLASSES:
        # Before the conversion, which would make 0.7 a 0, and NaN anything.
        what = f"integers >= 0, below {MOST:,}, in {name} (classes, by model.loss)"
        right = lambda x: (x >= 0) & (x < MOST) & (x == np.floor(x))  # noqa: E731
        if not finite:  # no class, for which the loss is NaN
            return np.where(right(targets), targets, -1).astype(np.int32)
        _require(where, what, targets, right)
        return targets.astype(np.int32, copy=False)
    if kind == LABELS:
        what = f"zeros and ones in {name}"
        right = lambda x: (x == 0) | (x == 1)  # noqa: E731
        if finite:
            _require(where, what, targets, right)
        targets = np.where(right(targets), targets, np.nan)
    return _floats(where, name, targets, finite).reshape(len(targets), -1)


def _floats(where: str, name: str, values: np.ndarray, finite: bool) -> np.ndarray:
    with np.errstate(over="ignore"):
        if finite:
            what = f"finite numbers that fit float32 in {name}"
            _require(where, what, values, lambda x: np.isfinite(x.astype(np.float32)))
        return values.astype(np.float32, copy=False)


def _owners(
    where: str, owners: np.ndarray, count: int
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns the number of the owner of each row, and the names in that order."""
    if owners.dtype.kind not in "iuUS" or owners.shape != (count,):
        what = f"{OWNERS} to be {count} integers or strings, one for each row of train"
        _refuse(where, f"{what}ing", _about(owners))
    if owners.dtype.kind == "S":
        owners = _texts(where, OWNERS, owners)
    names, numbers = np.unique(owners, return_inverse=True)
    return numbers.astype(np.int32), tuple(map(str, names.tolist()))


def _names(where: str, name: str, arrays: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """Returns the strings of the array of that name; none if it is not there."""
    found = arrays.get(name, np.array([], str))
    if found.dtype.kind not in "SU" or found.ndim != 1:
        _refuse(where, f"{name} to be names", _about(found))
    return tuple(_texts(where, name, found).tolist())


def _texts(where: str, name: str, texts: np.ndarray) -> np.ndarray:
    """Returns strings: bytes are text in UTF-8."""
    if texts.dtype.kind == "U":
        return texts
    with untrusted_files.reading(f"{name} in {where}", "to be texts in UTF-8"):
        return np.char.decode(texts, "utf-8")


def _table(where: str, arrays, inputs: np.ndarray, found: bool) -> Table | None:
    """Returns the words that integer inputs are numbers of; None: unknown."""
    units = _names(where, VOCABULARY, arrays)
    if not units:
        return None
    if inputs.dtype != np.int32:
        _refuse(where, f"integer inputs with a {VOCABULARY}", _about(inputs))
    table, highest = Table(WORDS, units, found), int(inputs.max())
    if len(set(units)) < len(units) or highest >= table.size:
        what = f"a {VOCABULARY} of words, each once, for tokens up to {highest}"
        _refuse(where, what, f"{len(units)} words and {tokens.SPECIAL} special tokens")
    return table


def _require(
    where: str, what: str, values: np.ndarray, right: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Raises for the first value that is not right, naming its row."""
    for start in range(0, len(values), ROWS):
        block = values[start : start + ROWS]
        if not (fine := right(block)).all():
            place = tuple(int(axis) for axis in np.argwhere(~fine)[0])
            _refuse(where, what, f"{block[place]} in row {start + place[0]}")


def _about(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _refuse(where: str, expected: str, got: str) -> NoReturn:
    msg = f"Expected {expected} in {where}, got {got}."
    raise ValueError(msg)
