"""A trained model, from the folder of a finished run or of a release.

params.json says which model it is and what it takes. params.safetensors has its arrays.
"""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Collection
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fl_sketch.config import build
from fl_sketch.core import plugins, pretrained, untrusted_files, validate
from fl_sketch.core.protocols import Tree
from fl_sketch.core.trees import Stateful, named_leaves
from fl_sketch.data import tokenizer as tokenizers
from fl_sketch.data.inputs import Scaling, scaled
from fl_sketch.data.tokenizer import Tokenizer
from fl_sketch.models import huggingface, params_io
from fl_sketch.models.losses import KINDS
from fl_sketch.models.metrics import CLASSES
from fl_sketch.workdir.weights import FILE, SIDECAR


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A trained model.

    Attributes:
      about: what params.json holds.
      module: the model, of flax.linen.
      params: its parameters; `Stateful` if it keeps statistics.
      tokenizer: what makes texts into its inputs; None: it takes no texts.
    """

    about: dict[str, Any]
    module: nn.Module
    params: Tree
    tokenizer: Tokenizer | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.about["inputs"]["shape"])

    @property
    def kind(self) -> str:
        """What it predicts: `CLASSES`, `LABELS` or `NUMBERS`."""
        return KINDS[self.about["loss"]].targets

    @property
    def class_names(self) -> tuple[str, ...]:
        """A name for each class or label; empty: they have none."""
        return tuple(self.about.get("class_names", ()))

    @functools.cached_property
    def variables(self) -> dict[str, Any]:
        """Parameters and statistics on the device, as the module takes them."""
        params = self.params
        if isinstance(params, Stateful):
            return jax.device_put({"params": params.params, **params.state})
        return jax.device_put({"params": params})

    @functools.cached_property
    def apply(self) -> Callable[[dict[str, Any], jax.typing.ArrayLike], jax.Array]:
        """`(variables, inputs) -> outputs` of a batch, jitted; it scales inputs."""
        scaling = _scaling(self.about)

        @jax.jit
        def apply(variables, inputs):
            outputs: Any = self.module.apply(variables, scaled(inputs, scaling))
            return outputs.astype(jnp.float32)

        return apply

    @functools.cached_property
    def outputs(self) -> tuple[int, ...]:
        """The shape of the outputs for one input."""
        shapes = jax.eval_shape(self.apply, self.variables, _example(self.about))
        return shapes.shape[1:]

    @property
    def of_places(self) -> bool:
        """Whether it predicts a class for every place of an input: the next token."""
        return self.kind == CLASSES and len(self.outputs) > 1


def load_trained(folder: str | os.PathLike, plugin: Collection[str] = ()) -> Trained:
    """Returns the model in the folder of a finished run, or of a release.

    Args:
      folder: the folder.
      plugin: the values FILE.py:NAME that the caller trusts. Loading such a model runs
        the code of its file, and the folder may come from another person.
    """
    place = pathlib.Path(folder).expanduser()
    path = place / FILE
    if not path.is_file() or not (place / SIDECAR).is_file():
        msg = f"Expected the folder of a finished run or of a release, with {SIDECAR} "
        raise ValueError(msg + f"and {FILE}, got {folder}.")
    with untrusted_files.reading(place / SIDECAR, "to be unchanged"):
        about = dict(json.loads((place / SIDECAR).read_text()))
        if "inputs" not in about:
            msg = f"Expected a model that a config names in {folder}, got that of "
            raise ValueError(msg + f"{about['model']}.")
        if plugins.named(model := about["model"]) and model not in plugin:
            msg = f"Expected plugin={model} to allow the code of the model in {place}, "
            raise ValueError(msg + f"which would run here, got plugin={[*plugin]}.")
        validate.one_of(tuple(KINDS), loss=about["loss"])
        given = about["inputs"]
        record = given.get("tokenizer")
        tokenizer = tokenizers.of(record) if record else None
        module = _module(about, place)
        shapes = jax.eval_shape(module.init, jax.random.key(0), _example(about))
        _scaling(about)  # raises for half of one
    with untrusted_files.reading(path, "to hold arrays by name"):
        arrays = params_io.load(path)
    _require_same(shapes, arrays, about["model"], path)
    return Trained(about, module, params_io.tree_of(arrays), tokenizer)


def _scaling(about: dict[str, Any]) -> Scaling | None:
    given = about["inputs"]
    if "mean" not in given:
        return None
    return Scaling(tuple(given["mean"]), tuple(given["deviation"]))


def _module(about: dict[str, Any], place: pathlib.Path) -> nn.Module:
    """Returns the module of a model, which needs no folder that it began with."""
    name, options = about["model"], about["options"]
    if pretrained.named(name):
        folder = pretrained.Folder(place, about["pretrained"]["config"])
        known = {key: options[key] for key in build.PLAIN if key in options}
        return huggingface.module(folder, about["outputs"], **known)
    vocabulary = about["inputs"].get("vocabulary", 0)
    return build.module_of(name, about["outputs"], about["size"], options, vocabulary)


def _example(about: dict[str, Any]) -> jax.ShapeDtypeStruct:
    """Returns the shape of a batch of one, as a model sees it."""
    given = about["inputs"]
    dtype = jnp.int32 if given["dtype"] == "int32" else jnp.float32
    return jax.ShapeDtypeStruct((1, *given["shape"]), dtype)


def _require_same(shapes: Any, arrays: params_io.Arrays, model: str, path) -> None:
    """Raises unless the arrays of a file are those of a model."""
    variables = dict(shapes)
    params = variables.pop("params", {})
    tree = Stateful(params, variables) if variables else params
    wanted = {name: tuple(leaf.shape) for name, leaf in named_leaves(tree)}
    found = {name: array.shape for name, array in arrays.items()}
    for name in {**wanted, **found}:
        if wanted.get(name) != found.get(name):
            one, other = wanted.get(name, "none"), found.get(name, "none")
            msg = f"Expected {path} to have {name} of shape {one}, as {model} has it, "
            raise ValueError(msg + f"got {other}.")
