"""config.json: the config of a run, and its identity, by which a folder knows it again.

Runs of one config and one identity are equal to the bit, and a run resumes only if both
are as they were. Other versions of packages and other devices change last bits: a run
without privacy resumes and says so. Checkpoints have a digest of the file, without the
number of rounds, which may grow.
"""

import hashlib
import hmac
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import fl_sketch
from fl_sketch.core import files, platforms, plugins, pretrained, untrusted_files
from fl_sketch.core.mappings import flat
from fl_sketch.models import params_io
from fl_sketch.workdir import weights
from fl_sketch.workdir.weights import TRAINED_ON

FORMAT = 7  # of a folder; folders of other formats are refused
IDENTITY = "identity"
APART = ("format", IDENTITY, TRAINED_ON)  # entries that are not keys of the config
TABLES = ("data.vocabulary_file",)
VERSIONS, SETTINGS = ("versions.", "devices"), "versions.jax_"
WORDS = {
    "frozen": "the part of the model that does not train",
    "program": "the loss, rates, bound and server",
}


class Identity(NamedTuple):
    """What a run is made of apart from its config.

    Attributes:
      data: digests of the arrays that were read, by their names.
      devices: the number and the kind of the devices, and whether each has a core.
      program: a digest of the rounds, where the config does not tell all of them.
      frozen: a digest of what does not train of the model; empty: all of it trains.
      trained_on: the names of the data sets that the first model was trained on.
      keyed: whether the data are private: a plain digest of them, by which guesses
        could be checked, may not be written anywhere.
    """

    data: Mapping[str, str] = {}
    devices: str = ""
    program: str = ""
    frozen: str = ""
    trained_on: tuple[str, ...] = ()
    keyed: bool = False

    def with_key(self, key: bytes) -> "Identity":
        """Returns the same with HMACs in place of digests of data."""

        def keyed(digest: str) -> str:
            return hmac.new(key, digest.encode(), "sha256").hexdigest()

        data = {name: keyed(one) for name, one in self.data.items()}
        return self._replace(data=data, program=self.program and keyed(self.program))


def contents(config: Mapping[str, Any], identity: Identity) -> dict[str, Any]:
    """Returns the contents of a run's config.json.

    It has digests of the files that the config names: plug-ins, weights to begin with,
    pretrained models, and tables.
    """
    keys = flat(config)
    start, model = keys.get("model.init_from"), str(keys.get("model.name", ""))
    digests = plugins.digests(keys.values())
    digests |= {start: params_io.digest(weights.read(start))} if start else {}
    paths = [pathlib.Path(str(keys.get(key, ""))) for key in TABLES]
    if pretrained.named(model):
        paths += pretrained.files(pretrained.read(model))
    digests |= {str(path): files.digest(path) for path in paths if path.is_file()}
    own = identity._asdict()
    seen, _ = own.pop("trained_on"), own.pop("keyed")
    own |= {"versions": platforms.versions(), "files": digests}
    whole = {"format": FORMAT, **config, IDENTITY: own, TRAINED_ON: sorted(seen)}
    return json.loads(json.dumps(whole))


def read(path: pathlib.Path) -> dict[str, Any]:
    """Returns the contents of the config.json at `path`, of this format."""
    with untrusted_files.reading(path, "to be an unchanged config"):
        found = dict(json.loads(path.read_text()))
        kind = found.get("format", 1)
        if kind != FORMAT:
            where = f"workdir={path.parent}"
            msg = f"Expected a workdir of format {FORMAT}, got {where} of "
            raise ValueError(msg + f"format {kind}, of another version of fl_sketch.")
        found[IDENTITY] = dict(found[IDENTITY])
    return found


def keys_of(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the dotted keys of the config in a config.json."""
    return flat({key: one for key, one in whole.items() if key not in APART})


def digest(whole: Mapping[str, Any]) -> str:
    """Returns a digest of a config.json of any number of rounds."""
    text = json.dumps({**whole, "rounds": None}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def unlike(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the differences that change all numbers, and those of last bits.

    Both are words, and empty if nothing does.
    """
    now, before = flat(ours[IDENTITY]), flat(theirs[IDENTITY])
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    newer = [n for n in names if n.startswith(VERSIONS) and not n.startswith(SETTINGS)]
    others = [name for name in names if name not in newer]
    if any(name.startswith("versions.") for name in newer) and "program" in others:
        others.remove("program")  # which has the versions in it
    said = (
        f"{name.removeprefix('versions.')} {before.get(name)} (now {now.get(name)})"
        for name in newer
    )
    first = WORDS.get(others[0], others[0]) if others else ""
    return first, ", ".join(said)


def everything(config: Mapping[str, Any], identity: Identity) -> dict[str, str]:
    """Returns all that processes of one run must have alike, by its name."""
    sha, folder = hashlib.sha256(), pathlib.Path(fl_sketch.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        sha.update(f"{file.relative_to(folder)} ".encode() + file.read_bytes())
    own = {key: repr(one) for key, one in flat(contents(config, identity)).items()}
    return own | {"source code": sha.hexdigest()}
