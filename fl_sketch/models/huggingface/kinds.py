"""The types of models that are known, by the model_type of a folder's config.json."""

import inspect
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import files, pretrained, validate
from fl_sketch.core.protocols import Key, Tree
from fl_sketch.core.trees import named_leaves
from fl_sketch.models import params_io
from fl_sketch.models.huggingface import arrays, bert, efficientnet, llama
from fl_sketch.models.huggingface.arrays import Form, Found


class Kind(NamedTuple):
    """A type of model.

    Attributes:
      module: `(folder, classes, **options) -> module`.
      form: `(folder) -> Form`, how its files name arrays.
      inputs: `() -> shape and type` of inputs by which a module is initialised.
    """

    module: Callable[..., nn.Module]
    form: Callable[[pretrained.Folder], Form]
    inputs: jax.ShapeDtypeStruct


TEXT = jax.ShapeDtypeStruct((1, 1), jnp.int32)
IMAGE = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
KINDS = {
    "bert": Kind(bert.module, bert.form, TEXT),
    "llama": Kind(llama.module, llama.form, TEXT),
    "efficientnet_lite0": Kind(efficientnet.module, efficientnet.form, IMAGE),
}


class Pretrained(NamedTuple):
    """A pretrained model.

    Attributes:
      module: the module; `module.apply({"params": params}, inputs)` are its outputs.
      params: its parameters.
      fresh: names of parameters that the folder lacks, which are random.
      left_out: names of arrays of the folder that the module does not use.
    """

    module: nn.Module
    params: Tree
    fresh: tuple[str, ...]
    left_out: tuple[str, ...]


def load(
    folder: str | os.PathLike, classes: int = 0, *, key: Key | None = None, **options
) -> Pretrained:
    """Returns the model of a folder.

    Args:
      folder: the folder, with `config.json` and `model.safetensors` or an index.
      classes: the number of logits. A head with as many is taken from the folder, and
        otherwise initialised anew. 0: an encoder's vectors, a decoder's next tokens.
      key: the key of new parameters; None: that of seed 0.
      **options: `pool` of encoders, "mean" or "first"; `dropout`.

    Raises:
      FileNotFoundError, ValueError: in one line, for a folder that is incomplete, or
        that holds another type of model.
    """
    if classes:
        validate.at_least_one(classes=classes)
    there = pretrained.read(folder)
    made = _module(there, classes, options)
    inputs = _kind(there).inputs
    example = jnp.zeros(inputs.shape, inputs.dtype)
    key = jax.random.key(0) if key is None else key
    shapes = jax.eval_shape(made.init, key, example)["params"]
    found = find(there, shapes)
    draw = jax.jit(lambda key: _named(made.init(key, example)["params"], found.fresh))
    whole = found.arrays | (draw(key) if found.fresh else {})
    return Pretrained(
        made, params_io.placed(shapes, whole), found.fresh, found.left_out
    )


def _named(params: Tree, names: Sequence[str]) -> dict[str, jax.Array]:
    """Returns the parameters of some names; a jitted function makes no others."""
    return {name: leaf for name, leaf in named_leaves(params) if name in names}


def module(folder: pretrained.Folder | str, classes: int, **options: Any) -> nn.Module:
    """Returns the module of a folder; no arrays are read.

    Args:
      folder: the folder, or its name, as a path or as hf/FOLDER.
      classes: as in `load`.
      **options: as in `load`.
    """
    validate.at_least_one(classes=classes)
    if isinstance(folder, str):
        folder = pretrained.read(folder)
    return _module(folder, classes, options)


def _module(folder: pretrained.Folder, classes: int, options: dict) -> nn.Module:
    make = _kind(folder).module
    legal = _options(make)
    for option in options:
        if option not in legal:
            has = f"only {', '.join(legal)}" if legal else "and no other"
            msg = f"Model of type {folder.kind!r} has no option {option!r}, {has}."
            raise ValueError(msg + validate.nearest(option, legal))
    return make(folder, classes, **options)


def options_of(name: str) -> tuple[str, ...]:
    """Returns the options of the model in a folder."""
    return _options(_kind(pretrained.read(name)).module)


def _options(make: Callable[..., nn.Module]) -> tuple[str, ...]:
    return tuple(inspect.signature(make).parameters)[2:]


def _kind(folder: pretrained.Folder) -> Kind:
    if folder.kind not in KINDS:
        names = " or ".join(KINDS)
        folder.refuse(f"a model_type of {names}", f"model_type={folder.kind!r}")
    return KINDS[folder.kind]


def find(folder: pretrained.Folder, model: Tree, *, read: bool = True) -> Found:
    """Returns the arrays of a folder that a model begins with.

    Args:
      model: shapes of the model's arrays.
      read: whether arrays are read; else there are names alone.
    """
    return arrays.find(folder, _kind(folder).form(folder), model, read=read)


def save(
    params: Tree,
    source: str | os.PathLike,
    out: str | os.PathLike,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a model that began with a folder in the same layout to another folder.

    The files that describe the model and its tokens are copied. A head has the names
    that it has in folders with one, and next to it other names have their prefix, which
    the package transformers requires.

    Args:
      params: the parameters.
      source: the folder that they began with.
      out: the new folder.
      metadata: texts by their names, for the file of the arrays.
    """
    there, target = pretrained.read(source), files.writable_folder(out, "out")
    form, whole = _kind(there).form(there), {}
    names = {entry.ours: entry for entry in form.table}
    for name, leaf in named_leaves(params):
        entry, array = names[name], np.asarray(leaf)
        order = entry.back(array.ndim)
        whole[entry.theirs] = np.ascontiguousarray(array.transpose(order))
    body = {name for name in whole if re.match(rf"{form.body}|pooler\.", name)}
    if body != {*whole}:
        whole = {form.prefix * (name in body) + name: whole[name] for name in whole}
    told = {"format": "pt", **(metadata or {})}  # which transformers requires
    params_io.save(target / pretrained.WEIGHTS, whole, told)
    for file in pretrained.files(there):
        if file.suffix == ".json" and file.name != pretrained.INDEX:
            shutil.copy(file, pathlib.Path(out) / file.name)
