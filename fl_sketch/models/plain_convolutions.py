"""Finds convolutions that `models.conv` would compute faster on a CPU."""

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import core

from fl_sketch.models.convolution import zeros_around

HINT = (
    "The loss has convolutions that are slow in loops on a CPU: nn.Conv(..., "
    "conv_general_dilated=models.conv) makes them fast, see docs/models."
)


def hint_at(program: Any) -> None:
    """Warns, once in a process, if a program has such convolutions."""
    if has_plain_convolutions(program):
        _warn()


@functools.cache
def _warn() -> None:
    warnings.warn(HINT, stacklevel=4)


def has_plain_convolutions(program: Any) -> bool:
    """Returns whether a program has convolutions that `models.conv` would compute.

    Those of `models.conv` itself are in branches of platforms.
    """
    for equation in program.eqns:
        if equation.primitive is core.primitives.conv_general_dilated_p:
            params = dict(equation.params)
            strides, padding = params.pop("window_strides"), params.pop("padding")
            x, kernel = (atom.aval for atom in equation.invars)
            if zeros_around(x, kernel, strides, padding, params) is not None:
                return True
        elif equation.params.get("branches_platforms") is None and any(
            map(has_plain_convolutions, programs_of(equation))
        ):
            return True
    return False


def programs_of(equation: Any) -> Iterator[Any]:
    """Yields the programs within an equation of a program."""
    kinds = core.ClosedJaxpr | core.Jaxpr
    for part in jax.tree.leaves(
        equation.params, is_leaf=lambda x: isinstance(x, kinds)
    ):
        if isinstance(part, kinds):
            yield part
