"""Any data as one npz file: a table, say, or features that a network made of images.

For each part, "train" and "test", the file holds `{part}_inputs`, numbers or strings
[n, ...], and `{part}_targets`: classes are whole numbers from 0 on [n], or [n, length]
where every place of a text has one; labels are zeros and ones [n, labels]; numbers are
floats [n] or [n, numbers]. `model.loss` decides which of these they are. The file may
also hold

- a third part, "validation", by which searches choose;
- `owners`, the client of each row of training: integers or strings [n], for
  `data.partition=natural`;
- `class_names`, strings: a name for each class or label;
- `vocabulary`, strings: the words whose numbers integer inputs are, the first of which
  has the number `tokenizer.SPECIAL`;
- `learnt`, strings [n]: the names of what was found in the training data, such as
  "vocabulary". Private runs refuse such a file.

Wrong arrays on which a model would train without an error are refused here, with the
name of the array and the first wrong row.
"""

import os
import pathlib
import warnings
import zipfile
from collections.abc import Mapping

import numpy as np

from fl_sketch.core import files, untrusted_files
from fl_sketch.data import raw
from fl_sketch.data.examples import Examples, Splits, from_parts
from fl_sketch.data.tokenizer import SPECIAL, WORDS, Table

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


def load(
    name: str,
    data_dir: str | os.PathLike | None,
    targets: str = CLASSES,
    *,
    finite: bool = True,
) -> Splits:
    """Returns the data set "npz/FILE" from the file FILE.npz of a folder.

    Floats become float32, integers int32, which are tokens; bytes stay bytes, which are
    pixels; strings are texts. There is a warning for arrays that nothing reads.

    Args:
      name: the name, "npz/FILE".
      data_dir: the folder; None: that of FL_SKETCH_DATA.
      targets: the kind of the targets.
      finite: whether training data must be finite.

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
        msg = f"Expected the file {path} with data.name={name}, got none."
        raise FileNotFoundError(msg)
    return checked(name, _read(path), where=str(path), targets=targets, finite=finite)


def one_part(
    path: str | os.PathLike, part: str, targets: str = CLASSES, *, finite: bool = True
) -> Splits:
    """Returns the data set of a file that needs to have one part only.

    The other part, where the file lacks it, is one example of zeros in its place.

    Args:
      path: path of the file.
      part: "train" or "test".
      targets: the kind of the targets, as in `checked`.
      finite: whether training data must be finite.
    """
    place, (other,) = pathlib.Path(path), {"train", "test"} - {part}
    if not place.is_file():
        msg = f"Expected an npz file with the examples, got {place}, which is none."
        raise FileNotFoundError(msg)
    arrays = _read(place)
    for kind in KINDS:
        own = arrays.get(f"{part}_{kind}")
        if own is not None and own.ndim and f"{other}_{kind}" not in arrays:
            arrays[f"{other}_{kind}"] = np.zeros((1, *own.shape[1:]), own.dtype)
    arrays.pop(OWNERS, None)
    own = {"targets": targets, "finite": finite, "whole": False}
    return checked(str(place), arrays, where=str(place), **own)


def checked(
    name: str,
    arrays: Mapping[str, np.ndarray],
    *,
    where: str,
    targets: str = CLASSES,
    finite: bool = True,
    whole: bool = True,
) -> Splits:
    """Returns the data set of some arrays, each as a device would hold it.

    Args:
      name: the name of the data set.
      arrays: the arrays by name, as in a file.
      where: their source, for errors.
      targets: the kind of the targets: `CLASSES`, `LABELS` or `NUMBERS`.
      finite: whether training data must be finite. Private runs do not require it: the
        client of an example that is not has no influence in its rounds.
      whole: whether these are all data, which warn of classes without an example.

    Raises:
      ValueError: in one line, for what is missing or wrong.
    """
    three = any(key in arrays for key in VALIDATION)
    wanted = (*ARRAYS, *VALIDATION) if three else ARRAYS
    missing = [key for key in wanted if key not in arrays]
    if missing:
        _refuse(where, ", ".join(wanted), f"no {missing[0]}")
    names = (*PARTS, "validation") if three else PARTS
    parts = {
        part: _examples(where, part, arrays, targets, finite or part != "train")
        for part in names
    }
    for kind in KINDS:
        _require_alike(where, kind, [getattr(part, kind) for part in parts.values()])
    if whole and finite and targets == CLASSES:
        _warn_of_classes(where, {name: part.targets for name, part in parts.items()})
    owners, owner_names = arrays.get(OWNERS), ()
    if owners is not None:
        owners, owner_names = _owners(where, owners, len(parts["train"].targets))
    width = 0 if targets == CLASSES else parts["train"].targets.shape[1]
    splits = from_parts(name, parts, width, owners=owners, owner_names=owner_names)
    marks = _names(where, LEARNT, arrays)
    learnt = tuple((mark, f"found in {name}") for mark in marks)
    return splits._replace(
        learnt=(*splits.learnt, *learnt),
        class_names=_class_names(where, arrays, splits.classes),
        tokenizer=_table(where, arrays, parts["train"].inputs, VOCABULARY in marks),
    )


def save(
    path: str | os.PathLike,
    train: Examples,
    test: Examples,
    owners: np.ndarray | None = None,
    validation: Examples | None = None,
) -> None:
    """Writes a file that `load` reads, in one step.

    Args:
      path: path of the file, which should end in ".npz".
      train: the examples to train on.
      test: the examples to test on.
      owners: the owner of each row of `train`, integers or strings.
      validation: the examples by which searches choose.
    """
    parts = (*train, *test, *(validation or ()))
    arrays = dict(zip((*ARRAYS, *VALIDATION), parts, strict=False))
    if owners is not None:
        arrays[OWNERS] = np.asarray(owners)
    write(path, arrays)


def write(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by their names, in one step."""
    with files.replacing(path) as partial, open(partial, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    what = f"to hold {', '.join(ARRAYS)}"
    if not zipfile.is_zipfile(path):
        msg = f"Expected {path} {what}, got a file that is no npz file."
        raise ValueError(msg)
    with untrusted_files.reading(path, what):
        untrusted_files.require_arrays_fit(path)
        # Opened here, since numpy leaves a damaged file open.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            unread = [key for key in archive.files if key not in READ]
            if unread:
                text = f"{path} has arrays that are not read: {', '.join(unread)}"
                warnings.warn(text, stacklevel=4)
            kept = (key for key in archive.files if key in READ)
            return {key: _array(path, archive, key) for key in kept}


def _array(path: pathlib.Path, archive: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    try:
        return archive[key]
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        msg = (
            f"Expected {key} of numbers or strings in {path}, got Python objects: "
            "convert them with .astype(str) or .astype(float)."
        )
        raise ValueError(msg) from None


def _examples(where: str, part: str, arrays, kind: str, finite: bool) -> Examples:
    first, second = (f"{part}_{what}" for what in KINDS)
    inputs = _inputs(where, first, arrays[first])
    targets = _targets(where, second, arrays[second], kind)
    for name, values in ((first, inputs), (second, targets)):
        if finite and values.dtype.kind == "f":
            given = arrays[name].reshape(values.shape)
            what = f"finite numbers that fit float32 in {name}"
            _require(where, what, given, np.isfinite(values))
    if len(inputs) != len(targets):
        counts = f"{len(targets)} for {len(inputs)}"
        _refuse(where, f"as many {part} targets as inputs", counts)
    return Examples(inputs, targets)


def _inputs(where: str, name: str, inputs: np.ndarray) -> np.ndarray:
    kind = inputs.dtype.kind
    if kind not in "fiuUb" or not inputs.ndim or not inputs.size:
        _refuse(where, f"{name} of numbers or strings, not empty", _form(inputs))
    if kind == "U":
        if inputs.ndim != 1:
            _refuse(where, f"{name} of one text per example", _form(inputs))
        return inputs.astype(object)
    if inputs.dtype == np.uint8:
        return inputs
    if kind == "f":
        return _floats(inputs)
    fits = (inputs >= -LARGEST) & (inputs <= LARGEST)
    _require(where, f"integers of 32 bits in {name}", inputs, fits)
    return inputs.astype(np.int32)


def _floats(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _require_alike(where: str, kind: str, arrays: list[np.ndarray]) -> None:
    """Raises unless the arrays of all parts have one type and shape of an example."""
    forms = dict.fromkeys(f"{array.dtype} {array.shape[1:]}" for array in arrays)
    if len(forms) > 1:
        _refuse(where, f"{kind} of one kind and shape", " and ".join(forms))


def _targets(where: str, name: str, targets: np.ndarray, kind: str) -> np.ndarray:
    what, types = {
        CLASSES: ("integers, not empty", "fiub"),
        LABELS: ("zeros and ones, one column per label", "fiub"),
        NUMBERS: ("numbers, not empty", "fiu"),
    }[kind]
    right = targets.dtype.kind in types and targets.ndim in (1, 2) and targets.size
    if not right:
        _refuse(where, f"{name} of {what}", _form(targets))
    if kind == CLASSES:
        return _classes(where, name, targets)
    if kind == LABELS:
        right = (targets == 0) | (targets == 1)
        _require(where, f"zeros and ones in {name}", targets, right)
    return _floats(targets).reshape(len(targets), -1)


def _classes(where: str, name: str, targets: np.ndarray) -> np.ndarray:
    # Before the conversion, which would make 0.7 a 0, and NaN anything.
    whole = (targets >= 0) & (targets <= LARGEST) & (targets == np.floor(targets))
    what = f"integers >= 0 in {name} (classes, by model.loss)"
    _require(where, what, targets, whole)
    _require(where, f"classes below {MOST:,} in {name}", targets, targets < MOST)
    return targets.astype(np.int32)


def _warn_of_classes(where: str, targets: Mapping[str, np.ndarray]) -> None:
    """Warns of classes without an example to train on, where each row has a class."""
    if targets["train"].ndim > 1:  # tokens, of which some are rare
        return
    present = {name: np.unique(values) for name, values in targets.items()}
    for name, classes in present.items():
        strange = np.setdiff1d(classes, present["train"])
        if strange.size:
            more = f" and {strange.size - 1} others" * (strange.size > 1)
            text = f"{name}_targets in {where} have class {strange[0]}{more}, of which "
            warnings.warn(text + "training has no example.", stacklevel=4)
    classes = np.unique(np.concatenate([*present.values()]))
    low, high = classes[0], classes[-1]
    if low and classes.size == 1 + high - low:  # all, but for the first
        text = f"Classes in {where} are {low} to {high}, counted from 0: a model has "
        warnings.warn(f"{text}{1 + high} outputs for them.", stacklevel=4)


def _owners(
    where: str, owners: np.ndarray, count: int
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns the number of the owner of each row, and the names in that order."""
    if owners.dtype.kind not in "iuUS" or owners.shape != (count,):
        what = f"{OWNERS} to be {count} integers or strings, one for each row of train"
        _refuse(where, f"{what}ing", _form(owners))
    names, numbers = np.unique(owners, return_inverse=True)
    if names.dtype.kind == "S":
        names = np.char.decode(names, "utf-8", "replace")
    return numbers.astype(np.int32), tuple(map(str, names.tolist()))


def _names(where: str, name: str, arrays: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """Returns the strings of the array of that name; none if it is not there."""
    found = arrays.get(name, np.array([], str))
    if found.dtype.kind != "U" or found.ndim != 1:
        _refuse(where, f"{name} to be names", _form(found))
    return tuple(found.tolist())


def _class_names(where: str, arrays, classes: int) -> tuple[str, ...]:
    names = _names(where, CLASS_NAMES, arrays)
    if names and len(names) < classes:
        _refuse(where, f"{CLASS_NAMES} for {classes} classes", f"{len(names)} names")
    return names


def _table(where: str, arrays, inputs: np.ndarray, found: bool) -> Table | None:
    """Returns the words that integer inputs are numbers of; None: unknown."""
    units = _names(where, VOCABULARY, arrays)
    if not units:
        return None
    if inputs.dtype != np.int32:
        _refuse(where, f"integer inputs with a {VOCABULARY}", _form(inputs))
    table, highest = Table(WORDS, units, found), int(inputs.max())
    if len(set(units)) < len(units) or highest >= table.size:
        what = f"a {VOCABULARY} of words, each once, for tokens up to {highest}"
        _refuse(where, what, f"{len(units)} words and {SPECIAL} special tokens")
    return table


def _require(where: str, what: str, values: np.ndarray, right: np.ndarray) -> None:
    """Raises for the first of some values that is not right, naming its row."""
    if not right.all():
        place = tuple(int(axis) for axis in np.argwhere(~right)[0])
        _refuse(where, what, f"{values[place]} in row {place[0]}")


def _form(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _refuse(where: str, expected: str, got: str) -> None:
    msg = f"Expected {expected} in {where}, got {got}."
    raise ValueError(msg)
