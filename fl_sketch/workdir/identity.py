"""What a run is made of: runs of one config and one identity are equal to the bit."""

import hmac
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from fl_sketch.core import files, platforms, plugins, pretrained
from fl_sketch.models import params_io
from fl_sketch.workdir import weights

TABLES = ("data.vocabulary_file",)


class Identity(NamedTuple):
    """What a run is made of apart from its config.

    Attributes:
      data: digests of the arrays that were read, by their names.
      versions: the versions of packages, by their names.
      devices: the number and the kind of the devices, and whether each has a core.
      program: a digest of the rounds, where the config does not tell all of them.
      frozen: a digest of what does not train of the model; empty: all of it trains.
      trained_on: the names of the data sets that the first model was trained on.
      keyed: whether the data are private, so that a plain digest of them, by which
        guesses about a target could be checked, may not be written anywhere.
    """

    data: dict[str, str] = {}
    versions: dict[str, str] = {}
    devices: str = ""
    program: str = ""
    frozen: str = ""
    trained_on: tuple[str, ...] = ()
    keyed: bool = False


def identity_of(data: Mapping[str, str], devices: str, **more: Any) -> Identity:
    """Returns the identity of a run with these digests of data, and these devices."""
    return Identity(dict(data), platforms.versions(), devices, **more)


def files_of(keys: Mapping[str, Any]) -> dict[str, str]:
    """Returns the digests of the files that `keys` of a config name, by their paths.

    These are plug-ins, weights to begin with, pretrained models, and tables.
    """
    start, model = keys.get("model.init_from"), str(keys.get("model.name", ""))
    digests = plugins.digests(keys.values())
    digests |= {start: params_io.digest(weights.read(start))} if start else {}
    if pretrained.named(model):
        there = pretrained.files(pretrained.read(model))
        digests |= {str(path): files.digest(path) for path in there}
    for key in TABLES:
        path = pathlib.Path(str(keys.get(key, "")))
        if path.is_file():
            digests[str(path)] = files.digest(path)
    return digests


def keyed(digest: str, key: bytes) -> str:
    """Returns an HMAC of `digest`."""
    return hmac.new(key, digest.encode(), "sha256").hexdigest()
