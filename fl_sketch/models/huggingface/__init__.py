"""Models that others trained, from folders in the layout of Hugging Face.

`load(folder)` returns a module of Flax Linen with its parameters; configs name the
folder by model.name=hf/FOLDER. Nothing is downloaded.
"""

import inspect
import os
from types import ModuleType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fl_sketch.core import pretrained, validate
from fl_sketch.core.protocols import Key, Tree
from fl_sketch.core.trees import named_leaves
from fl_sketch.models import params_io
from fl_sketch.models.huggingface import arrays, bert, llama
from fl_sketch.models.huggingface.arrays import Found

# By the model_type of config.json: files with `module(folder, classes, **options)` and
# `names(folder)`.
TYPES = {"bert": bert, "llama": llama}


class Pretrained(NamedTuple):
    """A model: `module.apply({"params": params}, inputs)` are its outputs."""

    module: nn.Module
    params: Tree
    fresh: tuple[str, ...]  # names of parameters that the folder lacks: random
    left_out: tuple[str, ...]  # names of arrays that the module does not use


def load(
    folder: str | os.PathLike, classes: int = 0, *, key: Key | None = None, **options
) -> Pretrained:
    """Returns the model of a folder.

    Args:
      folder: the folder, with `config.json` and `model.safetensors`.
      classes: the number of logits. A head with as many is taken from the folder, and
        otherwise initialised anew. 0: an encoder's vectors, a decoder's next tokens.
      key: the key of new parameters; None: that of seed 0.
      **options: `dropout` of encoders.
    """
    source = pretrained.read(folder)
    made, example = module(source, classes, **options), jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(made.init, jax.random.key(0), example)["params"]
    found = find(source, shapes)

    @jax.jit  # which makes no parameters but those returned
    def draw(key):
        drawn = named_leaves(made.init(key, example)["params"])
        return {name: leaf for name, leaf in drawn if name in found.fresh}

    new = draw(jax.random.key(0) if key is None else key) if found.fresh else {}
    params = params_io.insert(shapes, found.arrays | new)
    return Pretrained(made, params, found.fresh, found.left_out)


def module(
    folder: pretrained.Folder | str, classes: int = 0, **options: Any
) -> nn.Module:
    """Returns the module of a folder, or of hf/FOLDER; no arrays are read.

    `classes` and `options` are those of `load`.
    """
    if classes:
        validate.at_least_one(classes=classes)
    folder = pretrained.read(folder) if isinstance(folder, str) else folder
    return _type(folder).module(folder, classes, **options)


def options_of(name: str) -> tuple[str, ...]:
    """Returns the options of the model in a folder."""
    return tuple(inspect.signature(_type(pretrained.read(name)).module).parameters)[2:]


def find(folder: pretrained.Folder, model: Tree, *, read: bool = True) -> Found:
    """Returns the arrays of a folder that a model of these shapes starts with.

    Without `read`, there are names alone.
    """
    return arrays.find(folder, _type(folder).names(folder), model, read=read)


def _type(folder: pretrained.Folder) -> ModuleType:
    if folder.model_type not in TYPES:
        expected = f"a model_type of {' or '.join(TYPES)}"
        folder.refuse(expected, f"model_type={folder.model_type!r}")
    return TYPES[folder.model_type]
