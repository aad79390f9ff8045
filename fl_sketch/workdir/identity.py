"""What a run is, so that all of it is made of the same.

Two runs of one identity are equal to the last bit. Its parts are the config with the
files that it names, the data that were read, the versions of packages, and the devices.
All processes of a run must have the same; a folder keeps it, and so does every
checkpoint, with which a run goes on only if it is its own.
"""

import hashlib
import importlib.metadata
import json
import pathlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

import fl_sketch
from fl_sketch.core import files, plugins
from fl_sketch.core.mappings import flat
from fl_sketch.data.examples import Splits, digests
from fl_sketch.models import params_io
from fl_sketch.workdir import weights

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "fl_sketch")
SETTINGS = (
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_enable_x64",
    "jax_default_matmul_precision",
)
TABLES = (
    "cohort.available",
    "cohort.times",
    "data.vocabulary_file",
    "network.graph",
)  # keys of files
ACCEPTED = {  # what may differ from a run's beginning if somebody says so
    "versions": "programs of other versions may round last bits in another way",
    "devices": "other devices add up in another order, which changes last bits",
}


class Identity(NamedTuple):
    """What a run is made of beside its config.

    Attributes:
      data: digests of the arrays that were read, by their names.
      versions: the versions of packages, by their names.
      devices: the number and the kind of the devices, and whether each has a core.
    """

    data: dict[str, str] = {}
    versions: dict[str, str] = {}
    devices: str = ""


def identity_of(splits: Splits, devices: str) -> Identity:
    """Returns what a run on these data and devices is made of."""
    return Identity(digests(splits), versions(), devices)


def versions() -> dict[str, str]:
    """Returns the versions of the packages that decide what a run computes.

    With them stand the settings of jax by which the same program gives other numbers.
    """
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return found | {name: str(getattr(jax.config, name)) for name in SETTINGS}


def source() -> str:
    """Returns a SHA-256 of the code of this package, which a version may stand for."""
    found = hashlib.sha256()
    folder = pathlib.Path(fl_sketch.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        found.update(f"{file.relative_to(folder)} ".encode() + file.read_bytes())
    return found.hexdigest()


def named(config: ConfigDict, identity: Identity) -> dict[str, str]:
    """Returns everything that processes of one run must have alike, by its name.

    Args:
      config: the config.
      identity: what the run is made of beside it.
    """
    keys = flat(config.to_dict())
    found = {key: repr(value) for key, value in keys.items()}
    found |= {f"file of {name}": own[:12] for name, own in files_of(keys).items()}
    found |= {f"data in {name}": own[:12] for name, own in identity.data.items()}
    found |= {f"version of {name}": own for name, own in identity.versions.items()}
    return found | {"set of devices": identity.devices, "source code": source()[:12]}


def files_of(keys: Mapping[str, Any]) -> dict[str, str]:
    """Returns the digests of the files that `keys` of a config name, by where they are.

    Such are plug-ins, weights to begin with, and tables.
    """
    source = keys.get("model.init_from")
    found = plugins.digests(keys.values())
    found |= {source: params_io.digest(weights.read(source))} if source else {}
    for key in TABLES:
        path = pathlib.Path(str(keys.get(key, "")))
        if path.is_file():
            found[str(path)] = files.digest(path)
    return found


def stamp(
    keys: Mapping[str, Any], files: Mapping[str, str], identity: Identity
) -> dict[str, Any]:
    """Returns what a checkpoint says of the run that it belongs to.

    Args:
      keys: the keys of the config, dotted, with their values.
      files: the digests of the files that it names.
      identity: the rest.
    """
    return {
        "config": digest({**keys, **{f"file {k}": v for k, v in files.items()}}),
        "data": digest(identity.data),
        "versions": dict(identity.versions),
        "devices": identity.devices,
    }


def digest(values: Mapping[str, Any]) -> str:
    """Returns a SHA-256 of `values` by their names, as JSON has them."""
    text = json.dumps(dict(values), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def difference(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], accept: Collection[str]
) -> str:
    """Returns what keeps a run from going on with a checkpoint; empty: nothing.

    Args:
      ours: the stamp of the run.
      theirs: the stamp of the checkpoint.
      accept: names of `ACCEPTED` that may differ.
    """
    for name in ("config", "data"):
        if theirs.get(name) != ours[name]:
            return f"one of another {name}: put it away, or take another workdir"
    for name, cost in ACCEPTED.items():
        if theirs.get(name) == ours[name] or name in accept:
            continue
        own, other = _said(ours[name], theirs[name]), _said(theirs[name], ours[name])
        return (
            f"one of {other}, and here are {own}: with --accept={name} the run goes "
            f"on, and {cost}"
        )
    return ""


def _said(one: Any, other: Any) -> str:
    """Returns a part of a stamp in words, as far as it differs from another one."""
    if not isinstance(one, Mapping):
        return str(one)
    unlike = (name for name in one if one[name] != other.get(name))
    return ", ".join(f"{name} {one[name]}" for name in unlike)
