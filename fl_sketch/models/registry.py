"""Models by name, for configs.

>>> build("mlp", 10, width=32).hidden
(32, 32)
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn

from fl_sketch.core import plugins, pretrained, validate
from fl_sketch.models import adapters, huggingface
from fl_sketch.models.classifiers import Cnn, LeNet, Logistic, Mlp, SigmoidLeNet
from fl_sketch.models.resnets import ResNet
from fl_sketch.models.transformers import Transformer


class Model(NamedTuple):
    """A model with a name: `make(classes, **options)` returns its module."""

    make: type[nn.Module]
    options: tuple[str, ...] = ()  # their names
    given: Mapping[str, Any] = {}  # options with the values that belong to the name


BLOCKS = ("width", "depth", "heads", "dropout")
MODELS = {
    "logistic": Model(Logistic),
    "mlp": Model(Mlp, ("hidden", "width")),
    "lenet": Model(LeNet),
    "lenet_valid": Model(LeNet, given={"padding": "VALID"}),
    "sigmoid_lenet": Model(SigmoidLeNet),
    "cnn": Model(Cnn, ("width", "hidden", "dropout", "kernels")),
    "resnet": Model(ResNet, ("width", "stages", "norm")),
    "vit": Model(Transformer, ("patch", *BLOCKS), {"reads": "patches", "depth": 4}),
    "transformer": Model(Transformer, ("vocabulary", *BLOCKS)),
    "language_model": Model(Transformer, BLOCKS, {"reads": "causal"}),
}

# The shapes of SAFL's experiments, where they differ from the defaults.
BASE = {"width": 768, "depth": 12, "heads": 12}
SIZES: dict[str, dict[str, Mapping[str, Any]]] = {
    "small": {},
    "tiny": {"mlp": {"hidden": (128,)}, "resnet": {"stages": (1, 1, 1)}},
    "paper": {
        "resnet": {"width": 64, "stages": (3, 4, 23, 3), "bottleneck": True},
        "vit": BASE,
        "transformer": BASE,
    },
    "billion": {"language_model": {"width": 2048, "depth": 26, "heads": 16}},
}


def build(name: str, classes: int, *, size: str = "small", **options: Any) -> nn.Module:
    """Returns the model of that name; options are those of its module.

    Args:
      name: one of `MODELS`; hf/FOLDER, a folder of a pretrained model, whose arrays
        `huggingface.load` reads; or FILE.py:NAME, a function of the number of classes
        that returns a module of flax.linen; with `rngs` of flax.nnx, with `key` of
        equinox.
      classes: the number of classes of the data.
      size: "small", which trains on two cores, or one of `SIZES` that has the model.
      **options: options of the model, but for those that the size decides.
    """
    if not plugins.named(name) and not pretrained.named(name):
        validate.one_of((*MODELS, pretrained.SHAPE, plugins.SHAPE), model=name)
    validate.one_of(tuple(SIZES), size=size)
    if size != "small" and name not in SIZES[size]:
        msg = f"Expected size='small' for model {name!r}, got size={size!r}."
        raise ValueError(msg)
    validate.at_least_one(classes=classes)
    if plugins.named(name):
        return _from_file(name, classes, options)
    of_size = SIZES[size].get(name, {})
    legal = tuple(option for option in options_of(name) if option not in of_size)
    for option in options:
        if option not in legal:
            has = ", ".join(legal) or "none"
            msg = f"Expected options of {size} {name} to be among {has}, got {option}."
            raise ValueError(msg + validate.nearest(option, legal))
    if pretrained.named(name):
        return huggingface.module(name, classes, **options)
    model = MODELS[name]
    return model.make(classes, **{**model.given, **of_size, **options})


def _from_file(name: str, classes: int, options: dict[str, Any]) -> nn.Module:
    """Returns the model that a function in a user's file makes."""
    make = plugins.load(name)
    if not callable(make):
        msg = f"Expected {name} to be a function of the number of classes, got {make!r}"
        raise TypeError(msg)
    takes = inspect.signature(make).parameters
    if not any(argument.kind is argument.VAR_KEYWORD for argument in takes.values()):
        for option, value in options.items():
            if option not in takes:
                msg = f"Expected {name} to take {option}, got {option}={value!r} and a "
                raise ValueError(msg + f"function of {', '.join(takes) or 'nothing'}.")
    model = adapters.as_linen(make, classes, options)
    if not isinstance(model, nn.Module):
        msg = (
            f"Expected {name} to return a module of flax.linen, or to take rngs and "
            f"return one of flax.nnx, or key and one of equinox, got {type(model)}."
        )
        raise TypeError(msg)
    return model


def options_of(name: str) -> tuple[str, ...]:
    """Returns the options of the model of that `name`, of `MODELS` or hf/FOLDER.

    >>> options_of("resnet")
    ('width', 'stages', 'norm')
    """
    if pretrained.named(name):
        return huggingface.options_of(name)
    return MODELS[name].options
