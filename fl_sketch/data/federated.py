"""Federated data sets from the files in which others hand them on.

F-EMNIST comes as LEAF's json files or as TensorFlow Federated's HDF5, StackOverflow as
the latter. What is read here becomes an npz file with `owners` (`archive`).
"""

import collections
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fl_sketch.core import untrusted_files, validate
from fl_sketch.data import text

LABELS = 62  # of EMNIST: digits, capitals and small letters
SIDE = 28  # pixels of an image of EMNIST
SEPARATOR = "|"  # of the tags of a question
Arrays = dict[str, np.ndarray]
Users = Iterator[tuple[str, Mapping[str, Any]]]  # who, and its arrays by name


def femnist(train: str, test: str, *, most: int = 0) -> Arrays:
    """Returns F-EMNIST: images as bytes, with ink as 255, and a client for each writer.

    Args:
      train: a folder of LEAF's json files, or an HDF5 file of TensorFlow Federated.
      test: the same of the examples to test on.
      most: the number of writers, the first ones by name; 0: all.

    Raises:
      FileNotFoundError, ValueError: in one line, for files that are not there or hold
        anything else.
    """
    return _arrays(train, test, most, _images)


def next_words(
    train: str, test: str, *, words: int = 10_000, length: int = 20, most: int = 0
) -> Arrays:
    """Returns StackOverflow's sentences: each word is to be foretold from those before.

    Tokens are those of `text`; the vocabulary is that of the training sentences.

    Args:
      train: an HDF5 file of TensorFlow Federated.
      test: the same of the examples to test on.
      words: the number of tokens, the special ones included.
      length: the number of tokens of an example.
      most: the number of users, the first ones by name; 0: all.

    Raises:
      FileNotFoundError, ValueError: in one line.
    """
    counts = _counts(train, most, "tokens", str.split)
    known = _most_frequent(counts, words - text.SPECIAL)

    def read(own):
        said = [text.words(one) for one in _strings(own, "tokens")]
        table = text.tokens(said, known, length=length + 1)
        return table[:, :-1], table[:, 1:]

    return _arrays(train, test, most, read)


def tags(
    train: str, test: str, *, words: int = 10_000, labels: int = 500, most: int = 0
) -> Arrays:
    """Returns StackOverflow's questions as shares of words, and their tags as labels.

    Args:
      train: an HDF5 file of TensorFlow Federated.
      test: the same of the examples to test on.
      words: the number of words that count, the most frequent ones.
      labels: the number of tags, the most frequent ones.
      most: the number of users, the first ones by name; 0: all.

    Raises:
      FileNotFoundError, ValueError: in one line.
    """
    known = _most_frequent(_counts(train, most, "tokens", str.split), words)
    named = _most_frequent(_counts(train, most, "tags", _tags), labels)

    def read(own):
        said = [text.words(one) for one in _strings(own, "tokens")]
        inputs = _bags(said, known)
        inputs /= np.maximum(inputs.sum(1, keepdims=True), 1)
        marked = _bags([_tags(one) for one in _strings(own, "tags")], named)
        return inputs, np.minimum(marked, 1).astype(np.uint8)

    return _arrays(train, test, most, read)


def _arrays(train: str, test: str, most: int, read) -> Arrays:
    """Returns the arrays of an npz file, of all users one after the other."""
    found: Arrays = {}
    for part, path in (("train", train), ("test", test)):
        names, inputs, targets = [], [], []
        for name, own in _users(path, most):
            x, y = _read(path, name, own, read)
            names += [name] * len(y)
            inputs.append(x)
            targets.append(y)
        found[f"{part}_inputs"] = np.concatenate(inputs)
        found[f"{part}_targets"] = np.concatenate(targets)
        if part == "train":
            found["owners"] = np.array(names)
    return found


def _read(path: str, name: str, own: Mapping[str, Any], read):
    try:
        x, y = read(own)
    except KeyError as error:
        msg = f"Expected {path} to have {error.args[0]!r} of user {name}, got none."
        raise ValueError(msg) from None
    except Exception as error:  # of numbers that are none, or of another shape
        text = " ".join(str(error).split())
        msg = f"Expected examples of user {name} in {path}, got {text}."
        raise ValueError(msg) from None
    if len(x) != len(y):
        msg = f"Expected as many targets as inputs of user {name} in {path}, got "
        raise ValueError(msg + f"{len(y)} for {len(x)}.")
    return x, y


def _users(path: str, most: int) -> Users:
    """Yields the users of a folder of json files, or of an HDF5 file."""
    place = pathlib.Path(path).expanduser()
    validate.in_range(0, float("inf"), users=most)
    if place.is_dir():
        yield from _of_json(place, most)
    elif place.is_file():
        yield from _of_hdf5(place, most)
    else:
        msg = f"Expected a folder of json files or an HDF5 file, got {path}."
        raise FileNotFoundError(msg)


def _of_json(folder: pathlib.Path, most: int) -> Users:
    files = sorted(folder.glob("*.json"))
    found: dict[str, Any] = {}
    for file in files:
        try:
            found |= json.loads(file.read_text())["user_data"]
        except (ValueError, KeyError, TypeError, RecursionError):
            msg = f"Expected {file} to hold user_data, as LEAF's json files do."
            raise ValueError(msg) from None
    if not found:
        msg = f"Expected json files with users in {folder}, got {len(files)} files."
        raise ValueError(msg)
    for name in sorted(found)[: most or None]:
        yield name, found[name]


def _of_hdf5(file: pathlib.Path, most: int) -> Users:
    try:
        import h5py
    except ImportError:
        msg = f"Expected h5py to be installed to read {file}: pip install h5py."
        raise ValueError(msg) from None
    try:
        with h5py.File(file, "r") as opened:
            examples: Any = opened["examples"]
            names = sorted(examples)[: most or None]
            for name in names:
                group: Any = examples[name]
                untrusted_files.require_room(
                    file, sum(group[key].nbytes for key in group)
                )
                found = {key: group[key][()] for key in group}
                yield name, found
    except (OSError, KeyError, AttributeError, RuntimeError, TypeError) as error:
        msg = f"Expected {file} to be an HDF5 file with examples, got {error}."
        raise ValueError(" ".join(msg.split())) from None


def _images(own: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Returns images as bytes, 255 where there is ink, and labels."""
    key, label = ("pixels", "label") if "pixels" in own else ("x", "y")
    white = np.asarray(own[key], np.float64).reshape(-1, SIDE, SIDE, 1)
    if not np.isfinite(white).all():
        msg = "pixels that are not finite"
        raise ValueError(msg)
    labels = np.asarray(own[label], np.float64).reshape(-1)
    if not ((labels >= 0) & (labels < LABELS) & (labels == np.floor(labels))).all():
        msg = f"labels that are no whole numbers below {LABELS}"
        raise ValueError(msg)
    ink = np.clip(np.rint(255 * (1 - white)), 0, 255).astype(np.uint8)
    return ink, labels.astype(np.int32)


def _strings(own: Mapping[str, Any], key: str) -> list[str]:
    return [one.decode() if isinstance(one, bytes) else str(one) for one in own[key]]


def _tags(line: str) -> list[str]:
    return [tag for tag in line.split(SEPARATOR) if tag]


def _counts(path: str, most: int, key: str, parted) -> collections.Counter:
    counts: collections.Counter = collections.Counter()
    for name, own in _users(path, most):
        lines, _ = _read(path, name, own, lambda own: (_strings(own, key),) * 2)
        for line in lines:
            counts.update(parted(line.lower()))
    return counts


def _most_frequent(counts: collections.Counter, most: int) -> list[str]:
    """Returns the most frequent ones, of equally frequent ones the first by name."""
    ranked = sorted(counts, key=lambda unit: (-counts[unit], unit))
    if len(ranked) < most or most < 1:
        msg = f"Expected 1 to {len(ranked)} words or tags to be kept, got {most}."
        raise ValueError(msg)
    return ranked[:most]


def _bags(texts: Sequence[Iterable[str]], known: Sequence[str]) -> np.ndarray:
    """Returns how often each known unit stands in each text, float32."""
    place = {unit: number for number, unit in enumerate(known)}
    table = np.zeros((len(texts), len(known)), np.float32)
    for row, units in zip(table, texts, strict=True):
        for unit in units:
            if unit in place:
                row[place[unit]] += 1
    return table
