"""The arrays of a pretrained model: from the names of its files to those of a module.

A table has an entry for every array that a model may have. Arrays that no entry names
are left out, unless they belong to the body of the model: then the file holds another
model than the one its config.json describes.
"""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fl_sketch.core import untrusted_files
from fl_sketch.core.pretrained import Folder, weights
from fl_sketch.core.protocols import Tree
from fl_sketch.core.trees import named_leaves
from fl_sketch.models.params_io import TYPES, Arrays

DENSE = (1, 0)  # the axes of a kernel of PyTorch, in the order of Flax
CONVOLUTION = (2, 3, 1, 0)


class Entry(NamedTuple):
    """An array under two names.

    Attributes:
      theirs: its name in the files, "{}" for the number of a layer.
      ours: its name in the module.
      axes: the order of its axes for the module; empty: unchanged.
      optional: whether it is initialised anew if the files have none of that shape.
    """

    theirs: str
    ours: str
    axes: tuple[int, ...] = ()
    optional: bool = False

    def back(self, axes: int) -> tuple[int, ...]:
        """Returns the order of so many axes of a module, for the files."""
        return tuple(map(int, np.argsort(self.axes))) if self.axes else (*range(axes),)

    def numbered(self, layer: int) -> "Entry":
        """Returns the entry of a layer, counted from 0 in files and 1 in a module."""
        names = self.theirs.format(layer), self.ours.format(layer + 1)
        return Entry(*names, self.axes, self.optional)


def table(entries: Sequence[Entry], layers: int) -> list[Entry]:
    """Returns a table with one entry per layer for each entry with "{}"."""
    whole = []
    for entry in entries:
        several = range(layers) if "{}" in entry.theirs else [0]
        whole += [entry.numbered(layer) for layer in several]
    return whole


class Form(NamedTuple):
    """How the files of a type of model name their arrays.

    Attributes:
      table: all arrays that a module may use.
      prefix: an optional prefix of all names, such as "bert.".
      body: a pattern of names that must be in the table.
      ignored: a pattern of names in the body that no module needs.
    """

    table: list[Entry]
    prefix: str
    body: str
    ignored: str


class Found(NamedTuple):
    """The arrays of a folder.

    Attributes:
      arrays: those of the module, by its names.
      fresh: names of arrays of the module that are initialised anew.
      left_out: names of arrays of the files that the module does not use.
    """

    arrays: Arrays
    fresh: tuple[str, ...]
    left_out: tuple[str, ...]


class Stored(NamedTuple):
    """An array in a file, which is not yet read."""

    file: pathlib.Path
    name: str
    shape: tuple[int, ...]


def find(folder: Folder, form: Form, model: Tree, *, read: bool = True) -> Found:
    """Returns the arrays of a folder that a module begins with.

    Args:
      model: shapes of the module's arrays.
      read: whether arrays are read; else there are names alone.

    Raises:
      FileNotFoundError, ValueError: in one line, for files that cannot be read, for an
        array that is missing or has another shape, or for one that a model of this type
        does not have.
    """
    stored, wanted = _stored(folder, form), dict(named_leaves(model))
    chosen: dict[str, tuple[Stored, Entry]] = {}
    fresh = []
    for entry in form.table:
        if entry.ours not in wanted:
            continue
        there, shape = stored.get(entry.theirs), tuple(wanted[entry.ours].shape)
        if there is not None and _moved(there.shape, entry.axes) == shape:
            chosen[entry.ours] = there, entry
        elif entry.optional:
            fresh.append(entry.ours)
        else:
            _complain(folder, entry, there, shape)
    used = {entry.theirs for _, entry in chosen.values()}
    known = {entry.theirs for entry in form.table}
    for name in stored.keys() - known:
        if re.match(form.body, name) and not re.match(form.ignored, name):
            msg = f"Expected {folder.path} to hold arrays of {folder.kind} alone, got "
            raise ValueError(msg + f"{name} of shape {stored[name].shape}.")
    left = tuple(sorted(stored.keys() - used))
    return Found(_read(chosen) if read else {}, tuple(fresh), left)


def _complain(
    folder: Folder, entry: Entry, there: Stored | None, shape: tuple[int, ...]
) -> None:
    expected = tuple(shape[axis] for axis in entry.back(len(shape)))
    got = f"one of shape {there.shape}" if there else "none"
    msg = f"Expected {folder.path} to have {entry.theirs} of shape {expected}, as its "
    raise ValueError(msg + f"config.json says, got {got}.")


def _moved(shape: Sequence[int], axes: tuple[int, ...]) -> tuple[int, ...]:
    if len(axes) not in (0, len(shape)):
        return ()
    return tuple(shape[axis] for axis in axes) if axes else tuple(shape)


def _stored(folder: Folder, form: Form) -> dict[str, Stored]:
    """Returns all arrays in the files of a folder, by their names without a prefix."""
    found: dict[str, Stored] = {}
    for file in weights(folder):
        for name, shape in _shapes(file):
            plain = _plain(name, form.prefix)
            if plain in found:
                msg = f"Expected {folder.path} to have {name} once, got it in "
                raise ValueError(msg + f"{found[plain].file.name} and {file.name}.")
            found[plain] = Stored(file, name, shape)
    return found


def _plain(name: str, prefix: str) -> str:
    """Returns a name without its prefix, and as PyTorch has it.

    >>> _plain("bert.embeddings.LayerNorm.gamma", "bert.")
    'embeddings.LayerNorm.weight'
    """
    name = name.removeprefix(prefix)
    return re.sub(r"gamma$", "weight", re.sub(r"beta$", "bias", name))


def _shapes(file: pathlib.Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the name and the shape of every array in a file."""
    from safetensors import safe_open

    what = "to be a file of safetensors"
    with untrusted_files.reading(file, what), safe_open(file, "numpy") as opened:
        for name in opened.keys():  # noqa: SIM118 - it is no mapping
            yield name, tuple(opened.get_slice(name).get_shape())


def _read(chosen: Mapping[str, tuple[Stored, Entry]]) -> Arrays:
    """Returns arrays as float32, with their axes in the module's order."""
    from safetensors import safe_open

    found: Arrays = {}
    for file in sorted({stored.file for stored, _ in chosen.values()}):
        with safe_open(file, "numpy") as opened:
            for name, (stored, entry) in chosen.items():
                if stored.file == file:
                    found[name] = _floats(opened.get_tensor(stored.name), stored, entry)
    return found


def _floats(array: Any, stored: Stored, entry: Entry) -> np.ndarray:
    if array.dtype.name not in TYPES.values():
        msg = f"Expected {stored.file} to have {stored.name} of floats, got "
        raise ValueError(msg + f"{array.dtype}.")
    array = array.transpose(entry.axes) if entry.axes else array
    return np.ascontiguousarray(array, np.float32)
