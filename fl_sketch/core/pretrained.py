"""Folders of pretrained models, in the layout of Hugging Face.

A config names such a folder as hf/FOLDER. `config.json` describes the model,
`model.safetensors` has its arrays, and `tokenizer.json` converts texts to tokens.

>>> named("hf/minilm"), named("hf//data/minilm"), named("mlp")
(True, True, False)
"""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from fl_sketch.core import untrusted_files

PREFIX = "hf/"
SHAPE = "hf/FOLDER"  # as users are told
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"


class Folder(NamedTuple):
    """A folder with a pretrained model, and the contents of its `config.json`."""

    path: pathlib.Path
    config: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        """The type of the model, as in "bert"."""
        return self.config["model_type"]

    def count(self, key: str, default: int | None = None) -> int:
        """Returns an entry of `config.json` that is an integer of at least one."""
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
    """Returns the folder that `source` names, as a path or as hf/FOLDER."""
    path = pathlib.Path(str(source).removeprefix(PREFIX)).expanduser()
    if not (path / CONFIG).is_file():
        msg = f"Expected a folder with {CONFIG} for {SHAPE}, got {str(source)!r}."
        raise FileNotFoundError(msg)
    with untrusted_files.reading(path / CONFIG, "to be a file of json"):
        config = dict(json.loads((path / CONFIG).read_text(encoding="utf-8")))
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


def weights(folder: Folder) -> pathlib.Path:
    """Returns the file with the arrays of a model."""
    file = folder.path / WEIGHTS
    if not file.is_file():
        msg = f"Expected {folder.path} to have {WEIGHTS}, got a folder without it."
        raise FileNotFoundError(msg)
    return file


def files(folder: Folder) -> list[pathlib.Path]:
    """Returns all files of a folder that decide what a run computes."""
    others = [folder.path / name for name in (CONFIG, TOKENIZER)]
    return [*(file for file in others if file.is_file()), weights(folder)]


def padding(folder: Folder) -> int:
    """Returns the token that fills a text up to its length.

    A decoder without one is padded with its end of text, which no position attends to.
    """
    size, ends = folder.count("vocab_size"), folder.config.get("eos_token_id")
    choices = [folder.config.get("pad_token_id")]
    choices += ends if isinstance(ends, list) else [ends]
    token = next((one for one in choices if one not in (None, -1)), None)  # -1: none
    if not isinstance(token, int) or not 0 <= token < size:
        folder.refuse(f"a pad_token_id below vocab_size={size}", f"{token!r}")
    return token
