"""Checkpoints: one file each, that is either whole or not there.

A checkpoint is an npz file of all leaves by their path, so equal runs leave equal
bytes, and every array carries a checksum (zip's CRC-32) which reading verifies. A
file gets its name only when it is complete and on the disk.
"""

import contextlib
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np

from fl_sketch.core import files
from fl_sketch.core.trees import named_leaves

KEEP = 2  # the newest, and the one before in case the newest is damaged; 0: all
BESIDE, ROUND = "beside/", "round"  # names of texts
TYPE = "::"  # before a type in the name of an array
NAME = re.compile(r"round_(\d{8})\.npz")
PARTIAL = re.compile(r"\.round_\d{8}\.npz\.partial")


class Unreadable(RuntimeError):
    """There are checkpoints, and none of them can be read."""


class Saved(NamedTuple):
    """What a checkpoint holds.

    Attributes:
      number: the number of its round.
      tree: the tree that was saved.
      beside: texts that were saved with it, by name.
    """

    number: int
    tree: Any
    beside: dict[str, bytes]


def save(
    folder: pathlib.Path,
    number: int,
    tree: Any,
    *,
    keep: int = KEEP,
    beside: Mapping[str, bytes] = {},  # noqa: B006 - nobody writes to it
) -> None:
    """Writes `tree` to `folder` as the checkpoint of round `number`.

    What is `beside` it goes into the same file. Of all that are there the newest
    `keep` stay; with 0 all of them do.

    Raises:
      OSError: if it cannot be written; the earlier ones are as they were.
    """
    folder.mkdir(mode=0o700, exist_ok=True)  # it has what clients keep
    path = path_of(folder, number)
    with files.replacing(path) as partial, open(partial, "wb") as file:
        write(file, tree, {**beside, ROUND: str(number).encode()})
    for old in rounds(folder)[:-keep] if keep else ():
        path_of(folder, old).unlink()


def path_of(folder: pathlib.Path, number: int) -> pathlib.Path:
    """Returns the path of the checkpoint of round `number` in `folder`."""
    return folder / f"round_{number:08d}.npz"


def rounds(folder: pathlib.Path) -> list[int]:
    """Returns the rounds that have a checkpoint in `folder`, oldest first."""
    found = (NAME.fullmatch(name) for name in _names(folder))
    return sorted(int(match[1]) for match in found if match)


def newest(folder: pathlib.Path, like: Any, say: Callable[[str], None]) -> Saved | None:
    """Returns the newest checkpoint that can be read, or None.

    Args:
      folder: the folder of the checkpoints; need not exist.
      like: a tree of the same structure, with the shapes and types to expect.
      say: what is told, in a line, of every checkpoint that is passed over.

    Raises:
      Unreadable: if there are checkpoints and none can be read.
      ValueError: for one that was saved as that of another round.
    """
    for name in _names(folder):  # of a run that was killed while writing
        if PARTIAL.fullmatch(name):
            (folder / name).unlink()
    numbers = rounds(folder)
    for number in reversed(numbers):
        path = path_of(folder, number)
        try:
            # Opened here, since numpy leaves a damaged file open.
            with open(path, "rb") as file:
                tree, beside = read_all(file, like)
                own = beside[ROUND].decode()
        except Exception as error:  # zipfile and numpy raise a dozen kinds
            say(f"{path} is damaged ({error}): trying the one before.")
            continue
        if own != str(number):
            msg = (
                f"Expected {path} to be the checkpoint of its round, got that of round "
                f"{own}: put it away, or take another workdir."
            )
            raise ValueError(msg)
        return Saved(number, tree, beside)
    if numbers:
        msg = f"None of the {len(numbers)} checkpoints in {folder} can be read."
        raise Unreadable(msg)
    return None


def peek(folder: pathlib.Path, name: str) -> Any | None:
    """Returns array `name` of the newest checkpoint in `folder` with it, or None."""
    for number in reversed(rounds(folder)):
        with contextlib.suppress(Exception):  # `newest` will say what is wrong
            return array_of(path_of(folder, number), name)
    return None


def array_of(path: pathlib.Path, name: str) -> np.ndarray:
    """Returns array `name` of the checkpoint at `path`."""
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
        return arrays[name]


def arrays_below(path: pathlib.Path, start: str) -> dict[str, np.ndarray]:
    """Returns the arrays of the checkpoint at `path` whose names begin with `start`.

    They are called by the rest of their names, which are sorted.
    """
    # Opened here, since numpy leaves a damaged file open.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
        names = sorted(name for name in arrays if name.startswith(start))
        return {
            name.removeprefix(start).partition(TYPE)[0]: _typed(name, arrays[name])
            for name in names
        }


def write(
    file: BinaryIO,
    tree: Any,
    beside: Mapping[str, bytes] = {},  # noqa: B006 - nobody writes to it
) -> None:
    """Writes `tree`, and the texts `beside` it, to an open `file`."""
    texts = {BESIDE + name: np.frombuffer(t, np.uint8) for name, t in beside.items()}
    np.savez(file, allow_pickle=False, **_named(tree), **texts)


def read(file: BinaryIO, like: Any) -> Any:
    """Returns the tree in an open `file`; raises unless it is shaped as `like` is."""
    return read_all(file, like)[0]


def read_all(file: BinaryIO, like: Any) -> tuple[Any, dict[str, bytes]]:
    """Returns the tree in an open `file`, shaped as `like` is, and all beside it."""
    with np.load(file, allow_pickle=False) as arrays:
        leaves = [
            _leaf(name, arrays[_name(name, leaf)], leaf)
            for name, leaf in named_leaves(like)
        ]
        names = [name for name in arrays.files if name.startswith(BESIDE)]
        beside = {name.removeprefix(BESIDE): arrays[name].tobytes() for name in names}
    return jax.tree.unflatten(jax.tree.structure(like), leaves), beside


def _leaf(name: str, found: Any, like: Any) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(found, impl=str(jax.random.key_impl(like)))
    found = _typed(_name(name, like), found)
    if found.shape != like.shape or found.dtype != like.dtype:
        msg = (
            f"expected {name} of {like.dtype}{list(like.shape)}, "
            f"got {found.dtype}{list(found.shape)}"
        )
        raise ValueError(msg)
    return found


def _named(tree: Any) -> dict[str, np.ndarray]:
    named = {
        _name(name, leaf): np.asarray(
            jax.random.key_data(leaf) if _is_key(leaf) else leaf
        )
        for name, leaf in named_leaves(tree)
    }
    return {
        name: one.view(f"u{one.itemsize}") if TYPE in name else one
        for name, one in named.items()
    }


def _name(name: str, leaf: Any) -> str:
    """Returns the name of a leaf in a file: with its type, if npz has no word for it.

    Such are bfloat16 and its like, whose bits are kept as integers.
    """
    strange = not _is_key(leaf) and np.dtype(leaf.dtype).kind == "V"
    return f"{name}{TYPE}{leaf.dtype}" if strange else name


def _typed(name: str, found: np.ndarray) -> np.ndarray:
    """Returns an array of a file in the type that its name says."""
    kind = name.partition(TYPE)[2]
    return found.view(jax.numpy.dtype(kind)) if kind else found


def _is_key(leaf: Any) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _names(folder: pathlib.Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []
