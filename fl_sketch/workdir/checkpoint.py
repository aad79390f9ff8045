"""Checkpoints: one npz file each, either whole or not there.

A checkpoint has all leaves of a tree by their path, so that equal runs leave equal
bytes. Every array carries a checksum (zip's CRC-32) which reading verifies. `extra` are
arrays and texts by name, of any shape. Types for which npz has no word, as bfloat16,
are kept as integers, with their names behind those of the arrays.
"""

import pathlib
import re
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np

from fl_sketch.core import files, untrusted_files
from fl_sketch.core.trees import named_leaves
from fl_sketch.core.untrusted_files import arrays_in

KEEP = 2  # the newest, and the one before if the newest should be damaged; 0: all
EXTRA, ROUND = "extra/", "round"  # names of what is not in the tree
TYPE = "::"  # before a type in the name of an array
NAME = re.compile(r"round_(\d{8})\.npz")


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
    """Writes the checkpoint of round `number`; the newest `keep` stay, with 0 all.

    If it cannot be written, the earlier ones are as they were.
    """
    folder.mkdir(mode=0o700, exist_ok=True)  # it has what clients keep
    path = path_of(folder, number)
    with files.replacing(path) as partial, open(partial, "wb") as file:
        write(file, tree, {**extra, ROUND: str(number).encode()})
    for old in rounds(folder)[:-keep] if keep else ():
        path_of(folder, old).unlink()


def path_of(folder: pathlib.Path, number: int) -> pathlib.Path:
    """Returns the path of a checkpoint."""
    return folder / f"round_{number:08d}.npz"


def rounds(folder: pathlib.Path) -> list[int]:
    """Returns the rounds that have a checkpoint in `folder`, oldest first."""
    names = (NAME.fullmatch(path.name) for path in folder.glob("round_*.npz"))
    return sorted(int(match[1]) for match in names if match)


def newest(folder: pathlib.Path, like: Any) -> Saved | None:
    """Returns the newest checkpoint in `folder`, if there is one.

    `like` is a tree of the same structure, with the shapes and types to expect.
    """
    for path in folder.glob(".round_*.npz.partial"):  # of a run that was killed
        path.unlink()
    numbers = rounds(folder)
    return of_round(folder, numbers[-1], like) if numbers else None


def of_round(folder: pathlib.Path, number: int, like: Any) -> Saved:
    """Returns the checkpoint of round `number`, or raises a ValueError in one line."""
    path = path_of(folder, number)
    if not path.exists():
        msg = f"Expected the checkpoint {path}, got none."
        raise ValueError(msg)
    what = "to be a whole checkpoint (remove it to resume from the one before)"
    with untrusted_files.reading(path, what), open(path, "rb") as file:
        tree, extra = read(file, like)
        found = extra[ROUND].tobytes().decode()
        if found != str(number):
            msg = f"Expected {path} to be of its round, got that of round {found}."
            raise ValueError(msg)
    return Saved(number, tree, extra)


def array_of(path: pathlib.Path, name: str) -> np.ndarray:
    """Returns array `name` of the checkpoint at `path`."""
    with open(path, "rb") as file, arrays_in(file, path) as arrays:
        return arrays[name]


def arrays_below(path: pathlib.Path, start: str) -> dict[str, np.ndarray]:
    """Returns arrays whose names begin with `start`, sorted, by the rest of these."""
    with open(path, "rb") as file, arrays_in(file, path) as arrays:
        return {
            name.removeprefix(start).partition(TYPE)[0]: _typed(name, arrays[name])
            for name in sorted(arrays)
            if name.startswith(start)
        }


def write(
    file: BinaryIO,
    tree: Any,
    extra: Mapping[str, bytes | np.ndarray] = {},  # noqa: B006 - only read
) -> None:
    """Writes `tree` and `extra` to an open `file`."""
    arrays = {}
    for path, leaf in named_leaves(tree):
        array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        name = _name(path, leaf)
        arrays[name] = array.view(f"u{array.itemsize}") if TYPE in name else array
    for name, one in extra.items():
        array = np.frombuffer(one, np.uint8) if isinstance(one, bytes) else one
        arrays[EXTRA + name] = array
    np.savez(file, allow_pickle=False, **arrays)


def read(file: BinaryIO, like: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Returns the tree in an open `file`, shaped as `like` is, and its extra arrays."""
    leaves = []
    with arrays_in(file, getattr(file, "name", "a checkpoint")) as arrays:
        for path, leaf in named_leaves(like):
            name = _name(path, leaf)
            found: Any = _typed(name, arrays[name])
            if _is_key(leaf):
                kind = str(jax.random.key_impl(leaf))
                found = jax.random.wrap_key_data(found, impl=kind)
            elif found.shape != leaf.shape or found.dtype != leaf.dtype:
                msg = (
                    f"expected {path} of {leaf.dtype}{list(leaf.shape)}, "
                    f"got {found.dtype}{list(found.shape)}"
                )
                raise ValueError(msg)
            leaves.append(found)
        extra = {
            name.removeprefix(EXTRA): arrays[name]
            for name in arrays
            if name.startswith(EXTRA)
        }
    return jax.tree.unflatten(jax.tree.structure(like), leaves), extra


def _name(name: str, leaf: Any) -> str:
    """Returns a leaf's name in a file: with its type, if npz has no word for it."""
    strange = not _is_key(leaf) and np.dtype(leaf.dtype).kind == "V"
    return f"{name}{TYPE}{leaf.dtype}" if strange else name


def _typed(name: str, found: np.ndarray) -> np.ndarray:
    kind = name.partition(TYPE)[2]
    return found.view(jax.numpy.dtype(kind)) if kind else found


def _is_key(leaf: Any) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
