"""config.json: the config of a run, and what else it began with."""

import json
import os
import pathlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from fl_sketch.core import plugins, untrusted_files
from fl_sketch.core.mappings import flat
from fl_sketch.workdir.origin import CONFIG, TRAINED_ON

if TYPE_CHECKING:  # the engine does without it
    from ml_collections import ConfigDict

FORMAT = 4  # of a folder; folders of other formats are refused
FILES = "files"  # digests of the files that a config names
IDENTITY = "identity"  # what the run is made of apart from its config
LENGTHS = "extended_from"  # of a run that became longer, how long it was
WRITTEN = "to be an unchanged config"


class ConfigFile(NamedTuple):
    """What a config.json holds.

    Attributes:
      files: digests of the files that the config names, by their paths.
      data: digests of the arrays of the data, by their names.
      frozen: a digest of what does not train of the model; empty: all of it trains.
      lengths: the numbers of rounds that the run had before it became longer.
    """

    config: dict[str, Any]
    files: dict[str, str]
    data: dict[str, str]
    frozen: str
    lengths: list[int]


def read(path: pathlib.Path) -> ConfigFile:
    """Returns what the config.json at `path` holds.

    Raises:
      ValueError: for a file that was damaged, or that another version wrote.
    """
    with untrusted_files.reading(path, WRITTEN):
        config = json.loads(path.read_text())
    if not isinstance(config, dict):
        msg = f"Expected {path} to be a config, got a {type(config).__name__}."
        raise ValueError(msg)
    kind = config.pop("format", 1)
    if kind != FORMAT:
        msg = (
            f"Expected a workdir of format {FORMAT}, got workdir={path.parent} of "
            f"format {kind}, of another version of fl_sketch: use that version, or "
            "another workdir."
        )
        raise ValueError(msg)
    with untrusted_files.reading(path, WRITTEN):
        config.pop(TRAINED_ON, None)
        files, lengths = dict(config.pop(FILES, {})), list(config.pop(LENGTHS, []))
        own = dict(config.pop(IDENTITY, {}))
        data, frozen = dict(own.get("data", {})), str(own.get("frozen", ""))
    return ConfigFile(config, files, data, frozen, lengths)


def rounds_in(workdir: str | os.PathLike) -> int:
    """Returns how many rounds the run in a folder has, and loads no code of it."""
    path = _path_in(workdir)
    with untrusted_files.reading(path, WRITTEN):
        return int(read(path).config["rounds"])


def config_of(
    workdir: str | os.PathLike, defaults: "ConfigDict", plugin: Collection[str] = ()
) -> "ConfigDict":
    """Returns the config of the run in a folder.

    Args:
      defaults: a config with every key that one may have.
      plugin: the values FILE.py:NAME that the caller trusts. Loading one runs the code
        of its file, and the folder may come from another person.

    Raises:
      ValueError: for a folder without a run, with a run of other keys, or with one that
        names code which is not among `plugin`.
    """
    path = _path_in(workdir)
    config = defaults.copy_and_resolve_references()
    try:
        config.update(read(path).config)
    except (KeyError, AttributeError):
        msg = (
            "Expected workdir to be the folder of a run with the keys of "
            f"configs/default.py, got workdir={workdir}."
        )
        raise ValueError(msg) from None
    for key, value in flat(config).items():
        if plugins.named(value) and value not in plugin:
            msg = (
                f"Expected --plugin={value} to allow the code of {key} in {path}, got "
                f"plugin={','.join(plugin) or None}."
            )
            raise ValueError(msg)
    return config


def _path_in(workdir: str | os.PathLike) -> pathlib.Path:
    path = pathlib.Path(workdir) / CONFIG
    if not path.is_file():
        msg = f"Expected workdir to be the folder of a run, got workdir={workdir}."
        raise ValueError(msg)
    return path
