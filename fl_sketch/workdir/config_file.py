"""config.json: the config of a run, and its identity, by which a folder knows it again.

A run resumes only if both are as they were when it began. Other versions of packages
and other devices change last bits: a run without privacy resumes and says so. Its
checkpoints have a digest of the file, without the number of rounds, which may grow.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import fl_sketch
from fl_sketch.core import plugins, untrusted_files
from fl_sketch.core.mappings import flat
from fl_sketch.workdir.identity import Identity, files_of
from fl_sketch.workdir.weights import CONFIG, TRAINED_ON

if TYPE_CHECKING:  # the engine does without it
    from ml_collections import ConfigDict

FORMAT = 5  # of a folder; folders of other formats are refused
IDENTITY = "identity"
APART = ("format", IDENTITY, TRAINED_ON)  # entries that are not keys of the config
WHAT = {  # of an identity, in words
    "files": "the file of {}",
    "data": "the data's {}",
    "frozen": "the part of the model that does not train",
    "program": "the loss, rates, bound and server",
}


def contents(config: Mapping[str, Any], identity: Identity) -> dict[str, Any]:
    """Returns what config.json of a run holds."""
    own = identity._asdict()
    seen, _ = own.pop("trained_on"), own.pop("keyed")
    digests = own | {"files": files_of(flat(config))}
    whole = {"format": FORMAT, **config, IDENTITY: digests, TRAINED_ON: sorted(seen)}
    return json.loads(json.dumps(whole))


def read(path: pathlib.Path) -> dict[str, Any]:
    """Returns what the config.json at `path` holds, of this version of the format."""
    with untrusted_files.reading(path, "to be an unchanged config"):
        found = dict(json.loads(path.read_text()))
        kind = found.get("format", 1)
        if kind != FORMAT:
            msg = (
                f"Expected a workdir of format {FORMAT}, got workdir={path.parent} of "
            )
            raise ValueError(msg + f"format {kind}, of another version of fl_sketch.")
        own = found[IDENTITY]
        found[IDENTITY] = own | {n: dict(own[n]) for n in ("data", "files", "versions")}
        found[IDENTITY]["devices"] = str(own["devices"])
    return found


def everything(config: Mapping[str, Any], identity: Identity) -> dict[str, str]:
    """Returns all that processes of one run must have alike, by its name."""
    sha, folder = hashlib.sha256(), pathlib.Path(fl_sketch.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        sha.update(f"{file.relative_to(folder)} ".encode() + file.read_bytes())
    own = {key: repr(one) for key, one in flat(contents(config, identity)).items()}
    return own | {"source code": sha.hexdigest()}


def keys_of(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the dotted keys of the config in a config.json."""
    return flat({key: one for key, one in whole.items() if key not in APART})


def digest(whole: Mapping[str, Any]) -> str:
    """Returns a digest of a config.json of any number of rounds."""
    text = json.dumps({**whole, "rounds": None}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def changed(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Returns what of a run's identity is not as in its folder; empty: nothing."""
    ours, theirs = ours[IDENTITY], theirs[IDENTITY]
    for name, value in ours["versions"].items():
        if name.startswith("jax_") and theirs["versions"].get(name) != value:
            return name  # a setting, with which all numbers are others
    for name, words in WHAT.items():
        old, new = theirs.get(name, ""), ours[name]
        if name == "program" and ours["versions"] != theirs["versions"]:
            continue  # it has the versions in it
        if isinstance(new, dict):
            for key in {**new, **old}:
                if old.get(key) != new.get(key):
                    return words.format(key)
        elif old != new:
            return words
    return ""


def upgraded(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Returns which versions and devices are others than in a folder; empty: none."""
    ours, theirs = ours[IDENTITY], theirs[IDENTITY]
    now, before = dict(ours["versions"]), dict(theirs["versions"])
    now["devices"], before["devices"] = ours["devices"], theirs["devices"]
    return ", ".join(
        f"{name} {before.get(name)} (now {now.get(name)})"
        for name in {**now, **before}
        if now.get(name) != before.get(name)
    )


def config_of(
    workdir: str | os.PathLike, defaults: "ConfigDict", plugin: Collection[str] = ()
) -> "ConfigDict":
    """Returns the config of the run in a folder.

    Args:
      defaults: a config with every key that one may have.
      plugin: the values FILE.py:NAME of the folder whose code the caller trusts.
    """
    path = pathlib.Path(workdir) / CONFIG
    if not path.is_file():
        msg = f"Expected workdir to be the folder of a run, got workdir={workdir}."
        raise ValueError(msg)
    keys = keys_of(read(path))
    config = defaults.copy_and_resolve_references()
    try:
        config.update_from_flattened_dict(keys)
    except (KeyError, AttributeError):
        msg = "Expected the folder of a run with the keys of configs/default.py, got "
        raise ValueError(msg + f"workdir={workdir}.") from None
    for key, value in keys.items():
        if plugins.named(value) and value not in plugin:
            msg = (
                f"Expected --plugin={value} to allow the code of {key} in {path}, got "
            )
            raise ValueError(msg + f"plugin={','.join(plugin) or None}.")
    return config
