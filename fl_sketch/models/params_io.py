"""A model as named arrays: in files, and back in the places of their names.

A name is the path of an array in the model, as in "dense1/kernel", or "dense1.kernel"
for a model of NNX or Equinox. Of a model that keeps statistics, names begin with
"params/" and "state/".
"""

import hashlib
import pathlib
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from fl_sketch.core import files, validate
from fl_sketch.core.protocols import Tree
from fl_sketch.core.trees import Stateful, named_leaves
from fl_sketch.core.untrusted_files import arrays_in

Arrays = dict[str, np.ndarray]
BARE = "params"  # the name of a model that is one array
FORMS = ("safetensors", "npz")
TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


def tree_of(arrays: Mapping[str, np.ndarray]) -> Tree:
    """Returns nested dictionaries of `arrays`, by the parts of their names.

    >>> tree_of({"dense/bias": np.zeros(1)})
    {'dense': {'bias': array([0.])}}

    A model that is one array has the name `BARE`.
    """
    if set(arrays) == {BARE}:
        return arrays[BARE]
    tree = traverse_util.unflatten_dict(arrays, sep="/")
    return Stateful(**tree) if set(tree) == {"params", "state"} else tree


def save(
    path: pathlib.Path,
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes `arrays` to the file `path`, in the format of its ending.

    The file also has the `metadata`, one text by its name, of which npz keeps the text.
    """
    with files.replacing(path) as partial:
        if path.suffix == ".npz":
            with open(partial, "wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
            for text in (metadata or {}).values():
                with zipfile.ZipFile(partial, "a") as archive:
                    archive.comment = text.encode()
        else:
            from safetensors.numpy import save as packed

            whole = dict(metadata) if metadata else None
            partial.write_bytes(packed(dict(arrays), metadata=whole))


def load(path: pathlib.Path) -> Arrays:
    """Returns the arrays in the file `path`, by its ending npz or safetensors."""
    if path.suffix == ".npz":
        with open(path, "rb") as file, arrays_in(file, path) as arrays:
            return dict(arrays)
    from safetensors import deserialize

    def array(dtype: str, shape: Sequence[int], data: bytes) -> np.ndarray:
        # The reader of safetensors for numpy lacks bfloat16.
        return np.frombuffer(data, jnp.dtype(TYPES[dtype])).reshape(shape)

    return {name: array(**view) for name, view in deserialize(path.read_bytes())}


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns a SHA-256 of `arrays`, their names, types and shapes."""
    hashed = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hashed.update(f"{name} {array.dtype} {array.shape}".encode())
        hashed.update(array.reshape(-1).view(np.uint8).data)
    return hashed.hexdigest()


def select(model: Tree, arrays: Arrays, fresh: Sequence[str]) -> Arrays:
    """Returns the `arrays` of a file that a model starts with, in the model's types.

    Those whose names begin with one of `fresh` are left out.
    """
    leaves = dict(named_leaves(model))
    arrays = {_name_in(leaves, name): array for name, array in arrays.items()}
    for start in fresh:
        if not any(_begins(name, start) for name in leaves):
            layers = dict.fromkeys(map(_layer_of, leaves))
            msg = (
                f"Expected fresh to be one of {', '.join(layers)}, or an array of it, "
            )
            msg += f"got {start!r}."
            raise ValueError(msg + validate.nearest(start, tuple(leaves)))
    wanted = {
        name: leaf
        for name, leaf in leaves.items()
        if not any(_begins(name, start) for start in fresh)
    }
    layout = "the names and the layout that docs/files.md describes"
    for name, leaf in wanted.items():
        hint = f"model.fresh={_layer_of(name)} starts with new numbers there"
        if name not in arrays:
            hint = hint if wanted.keys() & arrays.keys() else f"give them {layout}"
            msg = f"Expected init_from to have {name}, got {', '.join(arrays)}: {hint}."
            raise ValueError(msg)
        shape = arrays[name].shape
        if shape != leaf.shape:
            if sorted(shape) == sorted(leaf.shape):
                hint = f"transpose it into {layout}"
            msg = f"Expected init_from to have {name} of shape {leaf.shape}, got "
            raise ValueError(msg + f"{shape}: {hint}.")
    for name in arrays.keys() - leaves.keys():
        msg = f"Expected init_from to have arrays of the model only, got {name}."
        raise ValueError(msg)
    return {name: _cast(name, arrays[name], wanted[name].dtype) for name in wanted}


def _name_in(leaves: Mapping[str, Any], name: str) -> str:
    """Returns an array's name in a model; NNX has `a/b/value` in Python for `a.b`."""
    dotted = name.removesuffix("/value").replace("/", ".")
    return dotted if name not in leaves and dotted in leaves else name


def _layer_of(name: str) -> str:
    """Returns the name of an array without its last part, if it has several."""
    return re.split(r"[/.](?=[^/.]*$)", name)[0]


def _begins(name: str, start: str) -> bool:
    return name == start or name.startswith((f"{start}/", f"{start}."))


def _cast(name: str, array: np.ndarray, dtype: Any) -> np.ndarray:
    """Returns an array of numbers in a model's type, where they must be finite."""
    if array.dtype.kind not in "fiubV":  # V: bfloat16 and its like
        msg = f"Expected init_from to have {name} of numbers, got {array.dtype}."
        raise ValueError(msg)
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    if not np.isfinite(cast.astype(np.float32)).all():
        msg = f"Expected finite numbers that fit {dtype} in {name} of init_from."
        raise ValueError(msg)
    return cast


def insert(model: Tree, arrays: Mapping[str, Any]) -> Tree:
    """Returns `model` with `arrays` in the places of their names."""
    if not arrays:
        return model
    leaves = [arrays.get(name, leaf) for name, leaf in named_leaves(model)]
    return jax.tree.unflatten(jax.tree.structure(model), map(jnp.asarray, leaves))
