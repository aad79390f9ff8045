"""The data that weights have seen, as folders and files of weights say it.

config.json, params.json and files of weights have a record, so copies have it too. A
run inherits the record of its initial weights. A private run refuses weights that have
seen its own data, since its accountant does not count what they reveal. Weights without
a record count as public.
"""

import hashlib
import hmac
import itertools
import json
import os
import pathlib
import zipfile
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fl_sketch.models.params_io import FORMS
from fl_sketch.workdir import checkpoint

CONFIG, SIDECAR, KEY = "config.json", "params.json", ".data_key"
FILES = tuple(f"params.{form}" for form in FORMS)  # that hold a whole model
TRAINED_ON = "trained_on"  # the entry of both json files, and in files of weights
KEY_BYTES = 32
UNKNOWN = "?"  # the name of data that no record tells
HIDDEN = "sha256:"  # begins a name that is a digest
ELSEWHERE = "in the folder of the run"  # where the digests of private data are
HEADER = 100 << 20  # bytes that the header of a safetensors file has at most


class TrainedOn(NamedTuple):
    """The data that weights have seen, their own and those of what they began with.

    Attributes:
      names: the names of the data sets that are not public, or digests of these.
      digests: digests of their arrays, plain or under one of the `keys`.
    """

    names: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    keys: tuple[bytes, ...] = ()

    def record(self) -> dict[str, list[str]]:
        """Returns it as json has it, with what tells keys apart and no more of them."""
        return {
            "names": sorted({*self.names}),
            "digests": sorted({*self.digests}),
            "keys": sorted({hashlib.sha256(key).hexdigest() for key in self.keys}),
        }


Record = Mapping[str, list[str]]
NOT_TOLD = TrainedOn((UNKNOWN,)).record()


def released(folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the file of weights in the `folder` of a release; None: it is no such.

    A release has neither the config nor the checkpoints of a run.
    """
    of_a_run = (folder / CONFIG).exists() or checkpoint.rounds(folder / "checkpoints")
    if of_a_run or not (folder / SIDECAR).is_file():
        return None
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def trained_on(source: str | os.PathLike) -> TrainedOn | None:
    """Returns the data that the weights of a run, a release or a file have seen.

    None: there is no record of it, as with a file that was downloaded. A run without a
    record that can be read, or without a key of its digests, has seen `UNKNOWN` data.
    """
    path = pathlib.Path(source).expanduser().resolve()
    path = released(path) or path
    if path.is_dir():
        return _known(_in_json(path / CONFIG), path)
    found, folder = _in_weights(path), path.parent
    if (folder / SIDECAR).exists():
        found = _both(found, _in_json(folder / SIDECAR))
    elif (folder / KEY).exists() or checkpoint.rounds(folder / "checkpoints"):
        found = _both(found, _in_json(folder / CONFIG))
    return _known(found, folder) if found else None


def of_files(paths: Iterable[pathlib.Path]) -> TrainedOn | None:
    """Returns the data that the weights in several files have seen together.

    None: no file has a record.
    """
    found = [known for path in paths if (known := trained_on(path))]
    return TrainedOn(*map(_joined, zip(*found, strict=True))) if found else None


def _joined(parts: Iterable[tuple]) -> tuple:
    return tuple(dict.fromkeys(itertools.chain.from_iterable(parts)))


def _both(file: Record | None, run: Record) -> Record:
    """Returns what a file and its run say; the run alone knows the keys."""
    if file is None:
        return run
    names, digests = ([*file[kind], *run[kind]] for kind in ("names", "digests"))
    return {**run, "names": names, "digests": digests}


def _known(record: Record, folder: pathlib.Path) -> TrainedOn:
    """Returns what a `record` says, with the keys that are in a `folder`."""
    keys = keys_in(folder)
    there = TrainedOn(keys=keys).record()["keys"]
    unknown = (UNKNOWN,) if {*record["keys"]} - {*there} else ()
    return TrainedOn((*record["names"], *unknown), tuple(record["digests"]), keys)


def _in_json(path: pathlib.Path) -> Record:
    """Returns the record in a json file, which must have one."""
    try:
        return _record(path.read_text())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return NOT_TOLD


def _in_weights(path: pathlib.Path) -> Record | None:
    """Returns the record in a file of weights; None: it has none."""
    try:
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                text = archive.comment.decode()
        else:
            with open(path, "rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(size, HEADER)))
            text = header["__metadata__"][TRAINED_ON]
    except Exception:  # whoever reads its arrays says what is wrong
        return None
    try:
        return _record(text) if text else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return NOT_TOLD


def _record(text: str) -> Record:
    """Returns the record in a json text; raises if there is none."""
    found = json.loads(text)[TRAINED_ON]
    record = {name: [*found[name]] for name in NOT_TOLD}
    if not all(isinstance(one, str) for listed in record.values() for one in listed):
        msg = "Expected a record of texts, got others."
        raise TypeError(msg)
    return record


def text_of(record: Record, *, released: bool = False) -> str:
    """Returns what a file of weights says of its record.

    Names are paths, so that they are hidden. Digests of private data are of no use
    without their key: a copy of the file says that it lacks them.

    Args:
      released: whether all may begin with it. Only names are compared then.
    """
    names = sorted({hidden(name) for name in record["names"]})
    whole = {**record, "names": names}
    if record["keys"]:
        whole |= {"digests": [], "keys": [] if released else [ELSEWHERE]}
    return json.dumps({TRAINED_ON: whole})


def keys_in(folder: pathlib.Path) -> tuple[bytes, ...]:
    """Returns the keys of digests in a `folder`: its own, then those of its weights."""
    path = folder / KEY
    whole = path.read_bytes() if path.is_file() else b""
    starts = range(0, len(whole) - KEY_BYTES + 1, KEY_BYTES)
    return tuple(whole[start : start + KEY_BYTES] for start in starts)


def keyed(digest: str, key: bytes) -> str:
    """Returns an HMAC of `digest`; the digest itself if `key` is empty."""
    if not key:
        return digest
    return hmac.new(key, digest.encode(), "sha256").hexdigest()


def seen(before: TrainedOn | None, name: str, digests: Mapping[str, str]) -> str:
    """Returns why a private run may not begin with weights; empty: it may.

    Digests of the data are compared, and the names of the data sets, for a part of one
    has another digest.

    Args:
      before: what the weights have seen.
      name: the name of the data set that the run protects; empty: it has none.
      digests: digests of its arrays, of which those of the training examples count.
    """
    if before is None:
        return ""
    if UNKNOWN in before.names:
        return "whose record of training data is damaged or lacks its key"
    if before.names and not (name or before.digests):
        return "a release, which does not tell its data: leave it out if they differ"
    keys = b"", *before.keys
    names = {hidden(one) for one in before.names}
    train = [digests[array] for array in digests if array.startswith("train_")]
    same = any(keyed(one, key) in before.digests for one in train for key in keys)
    if same or (name and hidden(name) in names):
        return "trained on the same data"
    return ""


def hidden(name: str) -> str:
    """Returns a digest of the name of a data set, one for all spellings of a path."""
    if name == UNKNOWN or name.startswith(HIDDEN):
        return name
    return HIDDEN + hashlib.sha256(plain_name(name).encode()).hexdigest()


def plain_name(name: str) -> str:
    """Returns the name of a data set, one for all spellings of a file's path.

    >>> plain_name("mnist"), plain_name("npz//data/./d.npz")
    ('mnist', 'npz//data/d.npz')
    """
    kind, slash, path = name.partition("/")
    if kind != "npz" or not slash:
        return name
    return f"npz/{os.path.realpath(os.path.expanduser(path))}"
