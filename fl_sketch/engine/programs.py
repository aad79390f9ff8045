"""Programs as jax traces them: a digest of one, what it writes and what it computes.

By the digest a folder knows its rounds again. Printed programs lack the arrays that
functions close over, and those of a function that is jitted are inside of it. So the
constants of all programs within are digested too. What a callback to the host computes
cannot be seen.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from fl_sketch.models import params_io
from fl_sketch.models.convolution import zeros_around


def digest(function: Callable, *arguments: Any) -> str:
    """Returns a SHA-256 of `function` as traced with `arguments`, constants included.

    >>> one, two = (jax.jit(lambda x, c=np.full(3, c): x + c) for c in (1.0, 2.0))
    >>> digest(one, 0.0) == digest(two, 0.0)
    False
    """
    program = jax.make_jaxpr(function)(*arguments)
    text = re.sub("0x[0-9a-f]+", "", str(program))  # addresses of functions
    arrays = {str(n): _numbers(one) for n, one in enumerate(_constants(program))}
    return params_io.digest(arrays | {"": np.frombuffer(text.encode(), "u1")})


def bytes_written(program: Any) -> int:
    """Returns the bytes of all values that a program makes, of a loop those of a turn.

    XLA reuses most of that memory, or needs none where it fuses operations.
    """
    total = 0
    for equation in program.eqns:
        inner = [bytes_written(part) for part in _parts(equation) if _is_program(part)]
        if inner:  # of branches, one is taken
            total += max(inner) if equation.primitive.name == "cond" else sum(inner)
            continue
        made: list[Any] = [variable.aval for variable in equation.outvars]
        shapes = [shape for shape in made if hasattr(shape, "shape")]
        total += sum(math.prod(s.shape) * s.dtype.itemsize for s in shapes)
    return total


def operations(program: Any) -> float:
    """Returns the multiplications and additions of a program's products.

    Those are products of matrices and convolutions, in a loop those of all its turns if
    their number is known. Of branches, the longest counts.
    """
    total = 0.0
    for equation in program.eqns:
        inner = [operations(part) for part in _parts(equation) if _is_program(part)]
        name, kinds = equation.primitive.name, equation.params
        if inner:
            turns = kinds.get("length", 1) if name == "scan" else 1
            total += turns * (max(inner) if name == "cond" else sum(inner))
        elif name in PRODUCTS:
            made, factor = equation.outvars[0].aval, equation.invars[1].aval
            total += 2.0 * math.prod(made.shape) * PRODUCTS[name](kinds, factor.shape)
    return total


def _contracted(kinds: dict[str, Any], right: tuple[int, ...]) -> int:
    """Returns the length of the sums of a `dot_general` with this right factor."""
    (_, axes), _ = kinds["dimension_numbers"]
    return math.prod(right[axis] for axis in axes)


def _under_kernel(kinds: dict[str, Any], kernel: tuple[int, ...]) -> int:
    """Returns the length of the sums of a convolution with a kernel of this shape."""
    return math.prod(kernel) // kernel[kinds["dimension_numbers"].rhs_spec[0]]


PRODUCTS = {"dot_general": _contracted, "conv_general_dilated": _under_kernel}


def _constants(program: Any) -> Iterator[Any]:
    """Yields the constants of a program and of all programs within, in their order."""
    if isinstance(program, core.ClosedJaxpr):
        yield from program.consts
    for equation in program.eqns:
        for value in equation.invars:
            if isinstance(value, core.Literal):
                yield value.val
        for part in _parts(equation):
            if _is_program(part):
                yield from _constants(part)
            elif isinstance(part, np.ndarray | jax.Array):
                yield part


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
        elif equation.params.get("branches_platforms") is None:
            parts = filter(_is_program, _parts(equation))
            if any(map(has_plain_convolutions, parts)):
                return True
    return False


def _parts(equation: Any) -> list[Any]:
    """Returns the parameters of an equation one by one, programs as they are."""
    return jax.tree.leaves(equation.params, is_leaf=_is_program)


def _is_program(value: Any) -> bool:
    return isinstance(value, core.ClosedJaxpr | core.Jaxpr)


def _numbers(constant: Any) -> np.ndarray:
    kind = getattr(constant, "dtype", None)
    if kind is not None and jnp.issubdtype(kind, jax.dtypes.extended):
        constant = jax.random.key_data(constant)
    return np.asarray(constant)
