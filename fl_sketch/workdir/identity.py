"""What a run is made of, by which a folder and a checkpoint know their run again.

Two runs of one identity are equal to the last bit. Its parts are the config with the
files that it names, the data that were read, the versions of packages, and the devices.
"""

import hashlib
import importlib.metadata
import json
import pathlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax

import fl_sketch
from fl_sketch.core import files, plugins, pretrained
from fl_sketch.models import params_io
from fl_sketch.workdir import weights
from fl_sketch.workdir.origin import TrainedOn

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "fl_sketch")
SETTINGS = (
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_enable_x64",
    "jax_default_matmul_precision",
)
TABLES = ("data.vocabulary_file",)
ACCEPTED = {  # what may differ from a run's beginning if the user accepts it
    "versions": "results may differ in the last bits",
    "devices": "results may differ in the last bits",
}


class Identity(NamedTuple):
    """What a run is made of apart from its config.

    Attributes:
      data: digests of the arrays that were read, by their names.
      versions: the versions of packages, by their names.
      devices: the number and the kind of the devices, and whether each has a core.
      program: a digest of the rounds, where the config does not tell all of them.
      frozen: a digest of what does not train of the model; empty: all of it trains.
      weights: what the first model was trained on; None: on nothing.
      keyed: whether the data are private, so that a plain digest of them, by which
        guesses about a target could be checked, may not be written anywhere.
    """

    data: dict[str, str] = {}
    versions: dict[str, str] = {}
    devices: str = ""
    program: str = ""
    frozen: str = ""
    weights: TrainedOn | None = None
    keyed: bool = False


def identity_of(data: Mapping[str, str], devices: str, **more: Any) -> Identity:
    """Returns the identity of a run with these digests of data, and these devices."""
    return Identity(dict(data), versions(), devices, **more)


def versions() -> dict[str, str]:
    """Returns the versions of packages, and settings of jax, that decide numbers."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return found | {name: str(getattr(jax.config, name)) for name in SETTINGS}


def source() -> str:
    """Returns a SHA-256 of the code of this package."""
    sha = hashlib.sha256()
    folder = pathlib.Path(fl_sketch.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        sha.update(f"{file.relative_to(folder)} ".encode() + file.read_bytes())
    return sha.hexdigest()


def named(keys: Mapping[str, Any], identity: Identity) -> dict[str, str]:
    """Returns everything that processes of one run must have alike, by its name."""
    return {
        **{key: repr(value) for key, value in keys.items()},
        **{f"file of {name}": one[:12] for name, one in files_of(keys).items()},
        **{f"data in {name}": one[:12] for name, one in identity.data.items()},
        **{f"version of {name}": one for name, one in identity.versions.items()},
        "set of devices": identity.devices,
        "source code": source()[:12],
    }


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


def stamp(
    keys: Mapping[str, Any], files: Mapping[str, str], identity: Identity
) -> dict[str, Any]:
    """Returns what a checkpoint holds of the run that it belongs to.

    Args:
      keys: the dotted keys of the config.
      files: the digests of the files that it names.
    """
    return {
        "config": digest({**keys, **{f"file {k}": v for k, v in files.items()}}),
        "data": digest(identity.data),
        "versions": dict(identity.versions),
        "devices": identity.devices,
        "program": identity.program,
        **({"frozen": identity.frozen} if identity.frozen else {}),
    }


def digest(values: Mapping[str, Any]) -> str:
    """Returns a SHA-256 of `values` by their names, as JSON has them."""
    text = json.dumps(dict(values), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def difference(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], accept: Collection[str]
) -> str:
    """Returns why a run may not resume from the stamp `theirs`; empty: it may.

    Args:
      accept: names of `ACCEPTED` that may differ.
    """
    for name in ("config", "data"):
        if theirs.get(name) != ours[name]:
            return f"one of another {name}: remove it, or use another workdir"
    if theirs.get("frozen") != ours.get("frozen"):
        return "one of other frozen parameters: use another workdir"
    upgraded = "versions" in accept and theirs.get("versions") != ours["versions"]
    if theirs.get("program") != ours["program"] and not upgraded:
        return "one of another loss, rate, bound or server: use another workdir"
    for name, cost in ACCEPTED.items():
        if theirs.get(name) == ours[name] or name in accept:
            continue
        there, here = (
            _unlike(*pair)
            for pair in ((theirs[name], ours[name]), (ours[name], theirs[name]))
        )
        return (
            f"one of {there}, but here are {here}: with --accept={name} the run "
            f"resumes, and {cost}"
        )
    return ""


def _unlike(one: Any, other: Any) -> str:
    """Returns the entries of a part of a stamp that differ from another one."""
    if not isinstance(one, Mapping):
        return str(one)
    names = (name for name in one if one[name] != other.get(name))
    return ", ".join(f"{name} {one[name]}" for name in names)
