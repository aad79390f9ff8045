"""Models by name, for configs.

>>> build("mlp", 10, width=32)
Mlp(
    # attributes
    classes = 10
    hidden = (32, 32)
)
>>> build("lenett", 10)
Traceback (most recent call last):
ValueError: Expected model to be one of 'logistic', 'mlp', 'lenet', 'sigmoid_lenet', \
'cnn', 'resnet', 'vit', 'transformer', 'language_model', 'FILE.py:NAME', got \
model='lenett'. Did you mean 'lenet'?
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn

from fl_sketch.core import plugins, validate
from fl_sketch.models import adapters, classifiers, resnets, transformers

MODELS = {
    "logistic": classifiers.logistic,
    "mlp": classifiers.mlp,
    "lenet": classifiers.lenet,
    "sigmoid_lenet": classifiers.sigmoid_lenet,
    "cnn": classifiers.cnn,
    "resnet": resnets.resnet,
    "vit": transformers.vit,
    "transformer": transformers.transformer,
    "language_model": transformers.language_model,
}

# The shapes of SAFL's experiments, where they differ from the defaults.
BASE = {"width": 768, "depth": 12, "heads": 12}
LARGE = {"width": 2048, "depth": 26, "heads": 16}
SIZES = {
    "small": MODELS,
    "tiny": {"resnet": functools.partial(resnets.resnet, blocks=1)},
    "paper": {
        "resnet": resnets.resnet101,
        "vit": functools.partial(transformers.vit, **BASE),
        "transformer": functools.partial(transformers.transformer, **BASE),
    },
    "billion": {
        "language_model": functools.partial(transformers.language_model, **LARGE)
    },
}


def build(name: str, classes: int, *, size: str = "small", **options: Any) -> nn.Module:
    """Returns the model of that name; options are those of its function.

    Args:
      name: one of `MODELS`, or FILE.py:NAME, a function of the number of classes that
        returns a module of flax.linen; with `rngs` of flax.nnx, with `key` of equinox.
      classes: the number of classes of the data.
      size: "small", which trains on two cores, or for the models in `SIZES` "tiny", the
        ResNet of 8 layers, "paper", or "billion", of 1.3 billion parameters.
      **options: options of the model's function.

    Raises:
      ValueError: for a name or an option that does not exist, with the nearest
        that does, or for a value that is not allowed.
      TypeError: for a value of another type.
    """
    if plugins.named(name):
        return _from_file(name, classes, size, options)
    validate.one_of((*MODELS, plugins.SHAPE), model=name)
    validate.one_of(tuple(SIZES), size=size)
    _require_size(name, size, name in SIZES[size])
    make = SIZES[size][name]
    legal = _options(make)
    for option in options:
        if option not in legal:
            has = ", ".join(legal) or "none"
            whose = "" if size == "small" else f" with size={size!r}"
            msg = f"Expected options of model {name!r}{whose} to be among {has}, got "
            msg += f"{option}."
            raise ValueError(msg + validate.nearest(option, legal))
    return make(classes, **options)


def _require_size(name: str, size: str, exists: bool) -> None:
    if not exists:
        msg = f"Expected size='small' for model {name!r}, got size={size!r}."
        raise ValueError(msg)


def _from_file(
    name: str, classes: int, size: str, options: dict[str, Any]
) -> nn.Module:
    """Returns the model that a function in a user's file makes, which has one size."""
    _require_size(name, size, size == "small")
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
    model = adapters.linen_of(make, classes, options)
    if not isinstance(model, nn.Module):
        kind = f"{type(model).__module__}.{type(model).__name__}"
        msg = (
            f"Expected {name} to return a module of flax.linen, or to take rngs and "
            f"return one of flax.nnx, or key and one of equinox, got {kind}."
        )
        raise TypeError(msg)
    return model


def options_of(name: str) -> tuple[str, ...]:
    """Returns the options of the model of that `name`, one of `MODELS`.

    >>> options_of("resnet")
    ('width', 'blocks', 'norm')
    """
    return _options(MODELS[name])


def _options(make: Callable[..., nn.Module]) -> tuple[str, ...]:
    return tuple(inspect.signature(make).parameters)[1:]
