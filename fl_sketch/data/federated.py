"""Federated data sets from the files in which others distribute them.

F-EMNIST is distributed as LEAF's json files or TensorFlow Federated's HDF5, and
StackOverflow as HDF5. The result is an npz file with `owners` (`npz`). Words and tags
that were derived from the training data are marked there as `learnt`.
"""

import itertools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fl_sketch.core import untrusted_files, validate
from fl_sketch.data import npz, text, tokenizer

LABELS = 62  # of EMNIST: digits, capitals and small letters
SIDE = 28  # pixels of an image of EMNIST
SEPARATOR = "|"  # of the tags of a question
User = Mapping[str, Any]  # the arrays of a user by name
Pair = tuple[np.ndarray, np.ndarray]


class Files(NamedTuple):
    """Where the users of a data set are.

    Attributes:
      train: a folder of LEAF's json files, or an HDF5 file of TensorFlow Federated.
      test: the same of the examples to test on.
      most: the number of users, the first ones by name; 0: all.
    """

    train: str
    test: str
    most: int = 0


def femnist(files: Files) -> dict[str, np.ndarray]:
    """Returns F-EMNIST: images as bytes, with ink as 255, and a client for each writer.

    This and the functions below return the arrays of an npz file by their names.

    Raises:
      FileNotFoundError, ValueError: in one line, for files that are not there or hold
        anything else.
    """
    return _arrays(files, _images)


def next_words(
    files: Files, *, words: int | Sequence[str] = 10_000, length: int = 20
) -> dict[str, np.ndarray]:
    """Returns StackOverflow's sentences: each word is predicted from those before.

    Tokens are those of `tokenizer`.

    Args:
      files: HDF5 files.
      words: the vocabulary; or the number of tokens, the special ones included, of
        which the words are the most frequent ones in training.
      length: the number of tokens of an example.
    """
    if isinstance(words, int):
        words -= tokenizer.SPECIAL
    known, learnt = _known(files, "vocabulary", words, _words)

    def read(user: User) -> Pair:
        table = tokenizer.tokens(_words(user), known, length=length + 1)
        return table[:, :-1], table[:, 1:]

    return _arrays(files, read, learnt) | {npz.VOCABULARY: np.array(known)}


def tags(
    files: Files,
    *,
    words: int | Sequence[str] = 10_000,
    labels: int | Sequence[str] = 500,
) -> dict[str, np.ndarray]:
    """Returns StackOverflow's questions as shares of words, and their tags as labels.

    Args:
      files: HDF5 files.
      words: the words that count; or their number, the most frequent ones in training.
      labels: the tags; or their number, the most frequent ones in training.
    """
    known, learnt_words = _known(files, "vocabulary", words, _words)
    names, learnt_tags = _known(files, "tags", labels, _tags)

    def read(user: User) -> Pair:
        inputs = _bags(_words(user), known)
        inputs /= np.maximum(inputs.sum(1, keepdims=True), 1)
        marked = _bags(_tags(user), names)
        return inputs, np.minimum(marked, 1).astype(np.uint8)

    arrays = _arrays(files, read, learnt_words + learnt_tags)
    return arrays | {npz.CLASS_NAMES: np.array(names)}


def _known(
    files: Files, name: str, units: int | Sequence[str], split: Callable
) -> tuple[Sequence[str], list[str]]:
    """Returns a list of units, and its name if it was found in the training data."""
    if not isinstance(units, int):
        return units, []
    validate.at_least_one(**{name: units})
    users = _users(files.train, files.most)
    lines = (_read(files.train, user, arrays, split) for user, arrays in users)
    known = text.vocabulary(itertools.chain.from_iterable(lines), units)
    if len(known) < units:
        msg = f"Expected {name} of at most {len(known)}, as {files.train} has, got "
        raise ValueError(msg + f"{units}.")
    return known, [name]


def _arrays(
    files: Files, read: Callable[[User], Pair], learnt: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Returns the arrays of an npz file, of all users one after the other."""
    arrays = {npz.LEARNT: np.array(learnt)} if learnt else {}
    for part, path in (("train", files.train), ("test", files.test)):
        names, inputs, targets = [], [], []
        for name, user in _users(path, files.most):
            x, y = _read(path, name, user, read)
            if len(x) != len(y):
                msg = f"Expected as many targets as inputs of user {name} in {path}, "
                raise ValueError(msg + f"got {len(y)} for {len(x)}.")
            names += [name] * len(y)
            inputs.append(x)
            targets.append(y)
        arrays[f"{part}_inputs"] = np.concatenate(inputs)
        arrays[f"{part}_targets"] = np.concatenate(targets)
        if part == "train":
            arrays[npz.OWNERS] = np.array(names)
    return arrays


def _read(path: str, name: str, user: User, read: Callable[[User], Any]) -> Any:
    with untrusted_files.reading(path, f"to hold the examples of user {name}"):
        return read(user)


def _users(path: str, most: int) -> Iterator[tuple[str, User]]:
    """Yields the users of a folder of json files, or of an HDF5 file, by name."""
    place = pathlib.Path(path).expanduser()
    validate.in_range(0, float("inf"), users=most)
    if place.is_dir():
        yield from _of_json(place, most)
    elif place.is_file():
        yield from _of_hdf5(place, most)
    else:
        msg = f"Expected a folder of json files or an HDF5 file, got {path}."
        raise FileNotFoundError(msg)


def _of_json(folder: pathlib.Path, most: int) -> Iterator[tuple[str, User]]:
    users: dict[str, Any] = {}
    for file in sorted(folder.glob("*.json")):
        with untrusted_files.reading(file, "to hold user_data, as LEAF's files do"):
            new = json.loads(file.read_text())["user_data"]
        if twice := users.keys() & new.keys():
            msg = f"Expected each user in one file, got {min(twice)} in {file} again."
            raise ValueError(msg)
        users |= new
    if not users:
        msg = f"Expected json files with users in {folder}, got none."
        raise ValueError(msg)
    for name in sorted(users)[: most or None]:
        yield name, users[name]


def _of_hdf5(file: pathlib.Path, most: int) -> Iterator[tuple[str, User]]:
    try:
        import h5py
    except ImportError:
        msg = f"Expected h5py to be installed to read {file}: pip install h5py."
        raise ValueError(msg) from None
    with (
        untrusted_files.reading(file, "to be an HDF5 file with examples"),
        h5py.File(file, "r") as opened,
    ):
        examples: Any = opened["examples"]
        for name in sorted(examples)[: most or None]:
            group: Any = examples[name]
            size = sum(group[key].nbytes for key in group)
            untrusted_files.require_room(file, size)
            yield name, {key: group[key][()] for key in group}


def _images(user: User) -> Pair:
    """Returns images as bytes, 255 where there is ink, and labels."""
    key, label = ("pixels", "label") if "pixels" in user else ("x", "y")
    white = np.asarray(user[key], np.float64).reshape(-1, SIDE, SIDE, 1)
    if not np.isfinite(white).all():
        msg = "pixels that are not finite"
        raise ValueError(msg)
    if white.size and not 0 <= white.min() <= white.max() <= 1:
        msg = "pixels that are not from 0 to 1"
        raise ValueError(msg)
    labels = np.asarray(user[label], np.float64).reshape(-1)
    if not ((labels >= 0) & (labels < LABELS) & (labels == np.floor(labels))).all():
        msg = f"labels that are no whole numbers below {LABELS}"
        raise ValueError(msg)
    ink = np.clip(np.rint(255 * (1 - white)), 0, 255).astype(np.uint8)
    return ink, labels.astype(np.int32)


def _words(user: User) -> list[list[str]]:
    return [tokenizer.words(line) for line in _strings(user, "tokens")]


def _tags(user: User) -> list[list[str]]:
    lines = _strings(user, "tags")
    return [[tag for tag in line.lower().split(SEPARATOR) if tag] for line in lines]


def _strings(user: User, key: str) -> list[str]:
    return [s.decode() if isinstance(s, bytes) else str(s) for s in user[key]]


def _bags(texts: Sequence[Iterable[str]], known: Sequence[str]) -> np.ndarray:
    """Returns how often each known unit occurs in each text, float32."""
    number = {unit: place for place, unit in enumerate(known)}
    table = np.zeros((len(texts), len(known)), np.float32)
    for row, units in zip(table, texts, strict=True):
        for unit in units:
            if unit in number:
                row[number[unit]] += 1
    return table
