"""Checkpoints: one npz file each, either whole or not there.

A checkpoint has all leaves of a tree by their path, so that equal runs leave equal
bytes. Every array carries a checksum (zip's CRC-32) which reading verifies. `extra` are
arrays and texts by name in the same file, whatever shape they have.
"""

import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np

from fl_sketch.core import files
from fl_sketch.core.trees import named_leaves
from fl_sketch.core.untrusted_files import arrays_in

KEEP = 2  # the newest, and the one before in case the newest is damaged; 0: all
EXTRA, ROUND = "extra/", "round"  # names of what is not in the tree
TYPE = "::"  # before a type in the name of an array
NAME = re.compile(r"round_(\d{8})\.npz")


class Unreadable(RuntimeError):
    """There are checkpoints, and none of them can be read."""


class Saved(NamedTuple):
    """What a checkpoint of round `number` holds."""

    number: int
    tree: Any
    extra: dict[str, np.ndarray]


def save(
    folder: pathlib.Path,
    number: int,
    tree: Any,
    *,
    keep: int = KEEP,
    extra: Mapping[str, bytes | np.ndarray] = {},  # noqa: B006 - only read
) -> None:
    """Writes `tree` to `folder` as the checkpoint of round `number`.

    Of all checkpoints the newest `keep` stay; with 0 all of them do.

    Raises:
      OSError: if it cannot be written; the earlier ones are as they were.
    """
    folder.mkdir(mode=0o700, exist_ok=True)  # it has what clients keep
    path = path_of(folder, number)
    with files.replacing(path) as partial, open(partial, "wb") as file:
        write(file, tree, {**extra, ROUND: str(number).encode()})
    for old in rounds(folder)[:-keep] if keep else ():
        path_of(folder, old).unlink()


def path_of(folder: pathlib.Path, number: int) -> pathlib.Path:
    """Returns the path of the checkpoint of round `number` in `folder`."""
    return folder / f"round_{number:08d}.npz"


def rounds(folder: pathlib.Path) -> list[int]:
    """Returns the rounds that have a checkpoint in `folder`, oldest first."""
    names = (NAME.fullmatch(path.name) for path in folder.glob("round_*.npz"))
    return sorted(int(match[1]) for match in names if match)


def newest(folder: pathlib.Path, like: Any, say: Callable[[str], None]) -> Saved | None:
    """Returns the newest checkpoint that can be read, or None.

    Args:
      folder: the folder of the checkpoints; need not exist.
      like: a tree of the same structure, with the shapes and types to expect.
      say: gets a line on every checkpoint that is passed over.

    Raises:
      Unreadable: if there are checkpoints and none can be read.
      ValueError: for one that was saved as that of another round.
    """
    for path in folder.glob(".round_*.npz.partial"):  # of a run that was killed
        path.unlink()
    numbers = rounds(folder)
    for number in reversed(numbers):
        path = path_of(folder, number)
        try:
            saved_as, saved = _saved(path, number, like)
        except Exception as error:  # zipfile and numpy raise a dozen kinds
            say(f"warning: {path} is damaged ({error}); using the checkpoint before it")
            continue
        _require_own_round(path, saved_as, number)
        return saved
    if numbers:
        msg = f"Expected a readable checkpoint, got {len(numbers)} damaged in {folder}."
        raise Unreadable(msg)
    return None


def of_round(folder: pathlib.Path, number: int, like: Any) -> Saved:
    """Returns the checkpoint of round `number`; the arguments are those of `newest`.

    Raises:
      ValueError: in one line, if it is not there or cannot be read.
    """
    path = path_of(folder, number)
    try:
        saved_as, saved = _saved(path, number, like)
    except Exception as error:  # zipfile and numpy raise a dozen kinds
        got = (
            "none"
            if isinstance(error, FileNotFoundError)
            else f"a damaged one: {error}"
        )
        msg = f"Expected {path}, the last checkpoint of a finished run, got {got}."
        raise ValueError(" ".join(msg.split())) from None
    _require_own_round(path, saved_as, number)
    return saved


def _saved(path: pathlib.Path, number: int, like: Any) -> tuple[str, Saved]:
    """Returns the round as which a checkpoint was saved, and what it holds."""
    # Opened here, since numpy leaves a damaged file open.
    with open(path, "rb") as file:
        tree, extra = read(file, like)
    return extra[ROUND].tobytes().decode(), Saved(number, tree, extra)


def _require_own_round(path: pathlib.Path, saved_as: str, number: int) -> None:
    """Raises for a checkpoint that was saved as that of another round."""
    if saved_as != str(number):
        msg = (
            f"Expected {path} to be the checkpoint of its round, got that of round "
            f"{saved_as}: remove it, or use another workdir."
        )
        raise ValueError(msg)


def array_of(path: pathlib.Path, name: str) -> np.ndarray:
    """Returns array `name` of the checkpoint at `path`."""
    with open(path, "rb") as file, arrays_in(file, path) as arrays:
        return arrays[name]


def arrays_below(path: pathlib.Path, start: str) -> dict[str, np.ndarray]:
    """Returns the arrays of the checkpoint at `path` whose names begin with `start`.

    They are called by the rest of their names, which are sorted.
    """
    with open(path, "rb") as file, arrays_in(file, path) as arrays:
        names = sorted(name for name in arrays if name.startswith(start))
        return {
            name.removeprefix(start).partition(TYPE)[0]: _typed(name, arrays[name])
            for name in names
        }


def write(
    file: BinaryIO,
    tree: Any,
    extra: Mapping[str, bytes | np.ndarray] = {},  # noqa: B006 - only read
) -> None:
    """Writes `tree` and `extra` to an open `file`."""
    arrays = {
        EXTRA + name: np.frombuffer(one, np.uint8) if isinstance(one, bytes) else one
        for name, one in extra.items()
    }
    np.savez(file, allow_pickle=False, **_named(tree), **arrays)


def read(file: BinaryIO, like: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Returns the tree in an open `file`, shaped as `like` is, and its extra arrays."""
    with arrays_in(file, getattr(file, "name", "a checkpoint")) as arrays:
        leaves = [
            _leaf(name, arrays[_name(name, leaf)], leaf)
            for name, leaf in named_leaves(like)
        ]
        names = [name for name in arrays.files if name.startswith(EXTRA)]
        extra = {name.removeprefix(EXTRA): arrays[name] for name in names}
    return jax.tree.unflatten(jax.tree.structure(like), leaves), extra


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
