"""A cache of data sets: npy files with checksums, written once and mapped into memory.

Decoding 60,000 images takes seconds, mapping them takes none. A folder of the cache
appears in one step, by renaming a finished one, so a process that is killed leaves
nothing that looks finished. One process at a time writes a data set, so several on one
machine may start together. What is whole is only read, so a cache may be read-only.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fl_sketch.core import files, untrusted_files
from fl_sketch.data.examples import Examples

FORMAT = "arrays-2"  # to be changed with every change of what is written
SUMS = "sums.json"  # the origin of the arrays, their SHA-256, and names of classes
PARTS = ("train", "test")


def root(cache_dir: str | os.PathLike | None) -> pathlib.Path:
    """Returns the folder `cache_dir`, or fl_sketch in the user's cache directory."""
    if cache_dir:
        return pathlib.Path(cache_dir).expanduser().absolute()
    return files.user_cache()


def folder(cache_dir: str | os.PathLike | None, name: str) -> pathlib.Path:
    """Returns the folder of one data set's arrays; it need not exist."""
    return root(cache_dir) / FORMAT / name


def origin(folder: pathlib.Path) -> dict[str, str] | None:
    """Returns what the arrays of a folder were made from; None: it has no arrays."""
    if not (folder / SUMS).is_file():
        return None
    return _listed(folder)["origin"]


def class_names(folder: pathlib.Path) -> tuple[str, ...]:
    """Returns the names of the classes of a folder's arrays; empty: they have none."""
    return tuple(_listed(folder)["class_names"])


def examples(
    folder: pathlib.Path,
    made_from: Mapping[str, str],
    read: Callable[[str], Examples],
    named: Callable[[], Sequence[str]] = tuple,
) -> dict[str, Examples]:
    """Returns the parts of a data set, images mapped into memory.

    Args:
      folder: the folder of the arrays, written first unless it has arrays of the same
        origin.
      made_from: the origin: digests by name.
      read: `(part) -> Examples`, for each of `PARTS`.
      named: returns the names of the classes.

    Raises:
      ValueError: in one line, for a folder that cannot be written, or arrays that are
        not as they were written.
    """
    if origin(folder) != made_from:
        files.writable_folder(folder.parent, "cache_dir")
        with _alone(folder):
            if origin(folder) != made_from:  # another process may have been faster
                _write(folder, made_from, read, named)
    sums = _listed(folder)["sha256"]
    return {
        part: Examples(
            *(_mapped(folder / f"{part}_{kind}.npy", sums) for kind in Examples._fields)
        )
        for part in PARTS
    }


def _listed(folder: pathlib.Path) -> dict[str, Any]:
    with untrusted_files.reading(folder / SUMS):
        content = json.loads((folder / SUMS).read_text())
        kinds = {"origin": dict, "sha256": dict, "class_names": list}
        return {name: kind(content[name]) for name, kind in kinds.items()}


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """Lets one process at a time in; the system frees the lock when it is killed."""
    path = folder.with_name(f".{folder.name}.lock")
    with open(path, "a", opener=files.unlinked) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(
    folder: pathlib.Path, made_from: Mapping[str, str], read: Callable, named: Callable
) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    try:
        partial.mkdir()
        for part in PARTS:
            for kind, array in read(part)._asdict().items():
                with open(partial / f"{part}_{kind}.npy", "wb") as stream:
                    np.save(stream, _packed(array), allow_pickle=False)
        sums = {file.name: files.digest(file) for file in sorted(partial.iterdir())}
        for name in sums:
            files.flush(partial / name)  # before the renaming, if the power fails
        content = {
            "origin": dict(made_from),
            "sha256": sums,
            "class_names": list(named()),
        }
        files.write_text(partial / SUMS, json.dumps(content, indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        files.flush(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _mapped(file: pathlib.Path, sums: Mapping[str, str]) -> np.ndarray:
    if files.digest(file) != sums.get(file.name):
        msg = (
            f"Expected {file} to be unchanged, got other bytes: remove its folder, "
            "which is a copy."
        )
        raise ValueError(msg)
    with untrusted_files.reading(file):
        return _unpacked(np.asarray(np.load(file, mmap_mode="r", allow_pickle=False)))


def _packed(array: np.ndarray) -> np.ndarray:
    """Returns an array for a file; texts become the bytes of a json list.

    >>> _unpacked(_packed(np.array(["to", "be"], object)))
    array(['to', 'be'], dtype=object)
    """
    if array.dtype != object:
        return array
    return np.frombuffer(json.dumps(array.tolist()).encode(), np.uint8)


def _unpacked(array: np.ndarray) -> np.ndarray:
    if array.ndim > 1 or array.dtype != np.uint8:
        return array
    return np.array(json.loads(array.tobytes()), object)
