"""The arrays of a pretrained model: from the names of its file to those of a module.

Arrays that no entry names are left out, unless they belong to the body of the model:
then the file holds another model than the one its config.json describes.
"""

import re
from typing import NamedTuple

import numpy as np

from fl_sketch.core import untrusted_files
from fl_sketch.core.pretrained import Folder, weights
from fl_sketch.core.protocols import Tree
from fl_sketch.core.trees import named_leaves
from fl_sketch.models.params_io import TYPES, Arrays


class Entry(NamedTuple):
    """An array under two names, in the file and in the module."""

    hf_name: str
    name: str
    transposed: bool = False  # a kernel, whose axes PyTorch has in the other order
    optional: bool = False  # initialised anew if the file has none of that shape


class NameMap(NamedTuple):
    """How the file of a type of model names its arrays."""

    entries: list[Entry]  # all arrays that a module may use
    prefix: str  # an optional prefix of all names, such as "bert."
    body: str  # a pattern of names that must be in the entries
    ignored: str  # a pattern of names in the body that no module needs


class Found(NamedTuple):
    """The arrays of a folder."""

    arrays: Arrays  # those of the module, by its names
    fresh: tuple[str, ...]  # names in the module that are initialised anew
    left_out: tuple[str, ...]  # names in the file that the module does not use


def dense(hf_name: str, name: str, *, optional: bool = False) -> list[Entry]:
    """Returns the entries of a dense layer with a bias."""
    return [
        Entry(f"{hf_name}.weight", f"{name}/kernel", True, optional),
        Entry(f"{hf_name}.bias", f"{name}/bias", False, optional),
    ]


def norm(hf_name: str, name: str) -> list[Entry]:
    """Returns the entries of a layer normalisation."""
    return [
        Entry(f"{hf_name}.weight", f"{name}/scale"),
        Entry(f"{hf_name}.bias", f"{name}/bias"),
    ]


def find(folder: Folder, names: NameMap, model: Tree, *, read: bool = True) -> Found:
    """Returns the arrays of a folder that a `model` of these shapes starts with.

    Without `read`, there are names alone.
    """
    from safetensors import safe_open

    file, wanted = weights(folder), dict(named_leaves(model))
    chosen, fresh, arrays = [], [], {}
    reading = untrusted_files.reading(file, "to be a file of safetensors")
    with reading, safe_open(file, "numpy") as opened:
        in_file = {_plain(name, names.prefix): name for name in opened.keys()}  # noqa: SIM118 - it is no mapping
        shapes = {
            hf_name: tuple(opened.get_slice(name).get_shape())
            for hf_name, name in in_file.items()
        }
        for entry in names.entries:
            if entry.name not in wanted:
                continue
            shape = tuple(wanted[entry.name].shape)
            expected = shape[::-1] if entry.transposed else shape
            found = shapes.get(entry.hf_name)
            if found == expected:
                chosen.append(entry)
            elif entry.optional:
                fresh.append(entry.name)
            else:
                got = f"one of shape {found}" if found else "none"
                msg = f"Expected {folder.path} to have {entry.hf_name} of shape "
                msg += f"{expected}, as its config.json says, got {got}."
                raise ValueError(msg)
        for name in shapes.keys() - {entry.hf_name for entry in names.entries}:
            if re.match(names.body, name) and not re.match(names.ignored, name):
                msg = f"Expected {folder.path} to hold arrays of {folder.model_type} "
                raise ValueError(msg + f"alone, got {name} of shape {shapes[name]}.")
        for entry in chosen if read else []:
            array = opened.get_tensor(in_file[entry.hf_name])
            if array.dtype.name not in TYPES.values():
                msg = f"Expected {file} to have {entry.hf_name} of floats, got "
                raise ValueError(msg + f"{array.dtype}.")
            array = array.T if entry.transposed else array
            arrays[entry.name] = np.ascontiguousarray(array, np.float32)
    left_out = shapes.keys() - {entry.hf_name for entry in chosen}
    return Found(arrays, tuple(fresh), tuple(sorted(left_out)))


def _plain(name: str, prefix: str) -> str:
    """Returns a name without its prefix, and as PyTorch has it.

    >>> _plain("bert.embeddings.LayerNorm.gamma", "bert.")
    'embeddings.LayerNorm.weight'
    """
    name = name.removeprefix(prefix)
    return re.sub(r"gamma$", "weight", re.sub(r"beta$", "bias", name))
