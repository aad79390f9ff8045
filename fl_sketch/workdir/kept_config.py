"""config.json: the config of a run, and what else it was begun with."""

import json
import os
import pathlib
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fl_sketch.core import untrusted_files

FORMAT = 3  # of a folder: what another one began, this version does not go on with
FILES = "files"  # that a config names, their digests
IDENTITY = "identity"  # what the run is made of beside its config
LENGTHS = "extended_from"  # of a run that became longer, how long it was


class Kept(NamedTuple):
    """What a config.json holds.

    Attributes:
      config: the config.
      files: the digests of one's own files, by where they are.
      data: the digests of the arrays of the data.
      lengths: the numbers of rounds that the run had before it became longer.
    """

    config: dict[str, Any]
    files: dict[str, str]
    data: dict[str, str]
    lengths: list[int]


def read(path: pathlib.Path) -> Kept:
    """Returns what the config.json at `path` holds.

    Raises:
      ValueError: for a file that was damaged, or that another version wrote.
    """
    with untrusted_files.reading(path, "to be a config as it was written"):
        config = json.loads(path.read_text())
    if not isinstance(config, dict):
        msg = f"Expected {path} to be a config, got a {type(config).__name__}."
        raise ValueError(msg)
    kind = config.pop("format", 1)
    if kind != FORMAT:
        msg = (
            f"Expected a workdir of format {FORMAT}, got workdir={path.parent} of "
            f"format {kind}: only the version of fl_sketch that began it can read it. "
            "Take another workdir."
        )
        raise ValueError(msg)
    with untrusted_files.reading(path, "to be a config as it was written"):
        files, lengths = dict(config.pop(FILES, {})), list(config.pop(LENGTHS, []))
        data = dict(config.pop(IDENTITY, {}).get("data", {}))
    return Kept(config, files, data, lengths)


def read_config(path: pathlib.Path) -> dict[str, Any]:
    """Returns the sections and keys of the config.json at `path`.

    Raises:
      ValueError: for a file that was damaged, or that another version wrote.
    """
    return read(path).config


def config_of(workdir: str | os.PathLike, defaults: ConfigDict) -> ConfigDict:
    """Returns the config of the run in a folder.

    Args:
      workdir: the folder.
      defaults: a config with every key that one may have, and their values where the
        run's does not say them.

    Raises:
      ValueError: for a folder without a run, or with one of other keys.
    """
    path = pathlib.Path(workdir) / "config.json"
    if not path.is_file():
        msg = f"Expected workdir to be the folder of a run, got workdir={workdir}."
        raise ValueError(msg)
    config = defaults.copy_and_resolve_references()
    try:
        config.update(read_config(path))
    except (KeyError, AttributeError):
        msg = (
            "Expected workdir to be the folder of a run with the keys of "
            f"configs/default.py, got workdir={workdir}."
        )
        raise ValueError(msg) from None
    return config
