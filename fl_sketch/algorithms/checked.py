"""Checks of the arguments of algorithms, by their annotations.

>>> from fl_sketch import algorithms
>>> algorithms.iterative_sketching(lambda w, batch: 0.0, client_rate=0.1, sketch=100)
Traceback (most recent call last):
TypeError: Expected sketch to be an operator of fl_sketch.sketch, as \
sketch.count_sketch(100), got sketch=100.
"""

import functools
import inspect
import numbers
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec

import jax
import numpy as np
import optax

from fl_sketch.core import shown
from fl_sketch.core.protocols import Algorithm, Compressor, Sketch
from fl_sketch.privacy import clipping
from fl_sketch.transforms import local

Arguments = ParamSpec("Arguments")


class Kind(NamedTuple):
    """What an argument may be, in words, and a function that decides it."""

    words: str
    holds: Callable[[Any], bool]


def checked(make: Callable[Arguments, Algorithm]) -> Callable[Arguments, Algorithm]:
    """Returns a constructor that raises a TypeError for arguments of a wrong type.

    The error is one line with the name of the argument, its value and what is allowed.
    Arguments whose annotation is not in `KINDS` are not checked.
    """
    signature = inspect.signature(make)

    @functools.wraps(make)
    def made(*args: Arguments.args, **named: Arguments.kwargs) -> Algorithm:
        try:
            given = signature.bind(*args, **named).arguments
        except TypeError:  # which the call itself says better
            given = {}
        for name, value in given.items():
            kind = KINDS.get(signature.parameters[name].annotation)
            if kind and not kind.holds(value):
                got = shown.cut(repr(value))
                msg = f"Expected {name} to be {kind.words}, got {name}={got}."
                raise TypeError(msg)
        return make(*args, **named)

    return made


def _is_number(value: Any) -> bool:
    """Returns whether a value is one number, which may be traced."""
    if isinstance(value, bool | np.bool_):
        return False
    is_array = isinstance(value, np.ndarray | jax.Array)
    return isinstance(value, numbers.Real) or (is_array and value.shape == ())


def _is_integer(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _is_optimizer(value: Any) -> bool:
    return callable(getattr(value, "init", None)) and hasattr(value, "update")


_NUMBER = Kind("a number", _is_number)
_SERVER = "an optax transformation, as optax.adam(0.01)"
KINDS: dict[Any, Kind] = {
    local.Loss: Kind("a function of (params, batch)", callable),
    local.Optimizer: Kind(
        "a function from a rate to an optax transformation, as optax.sgd", callable
    ),
    clipping.OfLimit: Kind("clipping.clip or clipping.normalise", callable),
    Sketch: Kind(
        "an operator of fl_sketch.sketch, as sketch.count_sketch(100)",
        lambda value: isinstance(value, Sketch),
    ),
    Compressor: Kind(
        "one of fl_sketch.sketch.compressors, as compressors.top_k(100)",
        lambda value: isinstance(value, Compressor),
    ),
    optax.GradientTransformation: Kind(_SERVER, _is_optimizer),
    optax.GradientTransformation | None: Kind(
        f"{_SERVER}, or None", lambda value: value is None or _is_optimizer(value)
    ),
    optax.ScalarOrSchedule: Kind(
        "a number, or a schedule of the round",
        lambda value: callable(value) or _is_number(value),
    ),
    jax.typing.ArrayLike: _NUMBER,
    float | jax.Array: _NUMBER,
    float: _NUMBER,
    int: Kind("an integer", _is_integer),
    bool: Kind("True or False", lambda value: isinstance(value, bool | np.bool_)),
    str: Kind("a text", lambda value: isinstance(value, str)),
}
