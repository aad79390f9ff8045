"""Folders of pretrained models, in the layout of Hugging Face.

A config names such a folder as hf/FOLDER. `config.json` describes the model.
`model.safetensors` has its arrays, or `model.safetensors.index.json` names the files
that have them. `tokenizer.json` converts texts to tokens.

>>> named("hf/minilm"), named("hf//data/minilm"), named("mlp")
(True, True, False)
"""

import functools
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from fl_sketch.core import untrusted_files

PREFIX = "hf/"
SHAPE = "hf/FOLDER"  # as users are told
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# Files in which a padding token may be named, the first one decides.
SPECIAL = ("tokenizer_config.json", "special_tokens_map.json")


class Folder(NamedTuple):
    """A folder with a pretrained model.

    Attributes:
      path: the folder.
      config: the contents of its `config.json`.
    """

    path: pathlib.Path
    config: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The type of the model, as in "bert"."""
        return self.config["model_type"]

    def count(self, key: str, default: int | None = None) -> int:
        """Returns an entry of `config.json` that is an integer of at least one.

        Raises:
          ValueError: in one line, for any other value, or none without a default.
        """
        value = self.config.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(f"{key} to be an integer >= 1", f"{key}={value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        """Returns an entry of `config.json` that is a positive number."""
        value = self.config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            self.refuse(f"{key} to be a number > 0", f"{key}={value!r}")
        return float(value)

    def require(self, key: str, *allowed: Any, default: Any = None) -> Any:
        """Returns an entry of `config.json` that has one of the `allowed` values."""
        value = self.config.get(key, default)
        if value not in allowed:
            choice = " or ".join(f"{one!r}" for one in allowed)
            self.refuse(f"{key} to be {choice}", f"{key}={value!r}")
        return value

    def refuse(self, expected: str, got: str) -> NoReturn:
        """Raises a ValueError of one line about `config.json`."""
        msg = f"Expected {self.path / CONFIG} to have {expected}, got {got}."
        raise ValueError(msg)


def named(name: str) -> bool:
    """Returns whether the `name` of a model is hf/FOLDER."""
    return name.startswith(PREFIX)


def read(source: str | os.PathLike) -> Folder:
    """Returns the folder that `source` names, as a path or as hf/FOLDER.

    A path is absolute, begins with ~, or is relative to the current folder.

    Raises:
      FileNotFoundError: for a folder or a `config.json` that does not exist.
      ValueError: in one line, for a `config.json` without a type of model.
    """
    path = pathlib.Path(str(source).removeprefix(PREFIX)).expanduser()
    if not (path / CONFIG).is_file():
        msg = f"Expected a folder with {CONFIG} for {SHAPE}, got {str(source)!r}."
        raise FileNotFoundError(msg)
    config = _json(path / CONFIG)
    if not isinstance(config.get("model_type"), str):
        msg = f"Expected {path / CONFIG} to have a model_type, got "
        raise ValueError(msg + f"{', '.join(config) or 'nothing'}.")
    return Folder(path, config)


def described(folder: Folder) -> dict[str, Any]:
    """Returns the entries of `config.json` that describe a model, with its padding.

    Names that begin with "_" are left out: they may be paths.
    """
    found = {key: own for key, own in folder.config.items() if not key.startswith("_")}
    if "vocab_size" in found:
        found["pad_token_id"] = padding(folder)
    return found


def weights(folder: Folder) -> list[pathlib.Path]:
    """Returns the files with the arrays of a model.

    Raises:
      FileNotFoundError: for a file that does not exist.
      ValueError: in one line, for an index that cannot be read.
    """
    path = folder.path
    if (path / INDEX).is_file() and not (path / WEIGHTS).is_file():
        files = _shards(path / INDEX)
    else:
        files = [path / WEIGHTS]
    for file in files:
        if not file.is_file():
            msg = f"Expected {path} to have {WEIGHTS}, or {INDEX} and all files that "
            raise FileNotFoundError(msg + f"it names, got no {file.name}.")
    return files


def _shards(index: pathlib.Path) -> list[pathlib.Path]:
    found = _json(index).get("weight_map")
    names = sorted(set(found.values()), key=str) if isinstance(found, dict) else []
    plain = all(isinstance(n, str) and n and n == os.path.basename(n) for n in names)
    if not names or not plain:
        msg = f"Expected {index} to have a weight_map of names of files, got {found!r}."
        raise ValueError(msg[:300])
    return [index.parent / name for name in names]


def files(folder: Folder) -> list[pathlib.Path]:
    """Returns all files of a folder that decide what a run computes."""
    others = (CONFIG, INDEX, TOKENIZER, *SPECIAL)
    there = [folder.path / name for name in others if (folder.path / name).is_file()]
    return [*there, *weights(folder)]


def padding(folder: Folder) -> int:
    """Returns the number of the token that fills a text up to its length.

    The tokenizer names it, or else `config.json`. A decoder without one is padded with
    its end of text, which no position attends to.

    Raises:
      ValueError: in one line, if there is none, or if the model has no such token.
    """
    config, size = folder.config, folder.count("vocab_size")
    found = _padding(*(_stamp(folder.path / name) for name in (TOKENIZER, *SPECIAL)))
    ends = config.get("eos_token_id")
    choices = [found, config.get("pad_token_id")]
    choices += ends if isinstance(ends, list) else [ends]
    token = next((one for one in choices if one not in (None, -1)), None)  # -1: none
    if not isinstance(token, int) or not 0 <= token < size:
        folder.refuse(f"a pad_token_id below vocab_size={size}", f"{token!r}")
    return token


Stamp = tuple[pathlib.Path, int, int]  # a file, when it was changed, and its size


def _stamp(path: pathlib.Path) -> Stamp:
    """Returns what changes when a file does."""
    if not path.is_file():
        return path, 0, 0
    about = path.stat()
    return path, about.st_mtime_ns, about.st_size


@functools.cache
def _padding(tokenizer: Stamp, *special: Stamp) -> int | None:
    """Returns the padding token that the files of a tokenizer name; None: none."""
    if not tokenizer[2]:
        return None
    whole = _json(tokenizer[0])
    with untrusted_files.reading(tokenizer[0], "to be a tokenizer"):
        if whole.get("padding"):
            return whole["padding"].get("pad_id")
        numbers = dict(whole["model"]["vocab"]) if "vocab" in whole["model"] else {}
        numbers |= {one["content"]: one["id"] for one in whole["added_tokens"]}
    for path, _, size in special:
        name = _json(path).get("pad_token") if size else None
        name = name.get("content") if isinstance(name, dict) else name
        if name in numbers:
            return numbers[name]
    return None


def _json(path: pathlib.Path) -> dict[str, Any]:
    with untrusted_files.reading(path, "to be a file of json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            msg = f"Expected {path} to hold names and values, got {type(found)}."
            raise ValueError(msg)
        return found
