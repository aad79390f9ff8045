"""A digest of a program as jax traces it, by which a folder knows its rounds again.

Printed programs lack the arrays that functions close over, and those of a function that
is jitted are inside of it. So the constants of all programs within are digested too.
What a callback to the host computes cannot be seen.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from fl_sketch.models import params_io


def of_program(function: Callable, *arguments: Any) -> str:
    """Returns a SHA-256 of `function` as traced with `arguments`, constants included.

    >>> one, two = (jax.jit(lambda x, c=np.full(3, c): x + c) for c in (1.0, 2.0))
    >>> of_program(one, 0.0) == of_program(two, 0.0)
    False
    """
    program = jax.make_jaxpr(function)(*arguments)
    text = re.sub("0x[0-9a-f]+", "", str(program))  # addresses of functions
    arrays = {str(n): _numbers(one) for n, one in enumerate(_constants(program))}
    return params_io.digest(arrays | {"": np.frombuffer(text.encode(), "u1")})


def _constants(program: Any) -> Iterator[Any]:
    """Yields the constants of a program and of all programs within, in their order."""
    if isinstance(program, core.ClosedJaxpr):
        yield from program.consts
        program = program.jaxpr
    for equation in program.eqns:
        for value in equation.invars:
            if isinstance(value, core.Literal):
                yield value.val
        for leaf in jax.tree.leaves(equation.params, is_leaf=_is_program):
            if _is_program(leaf):
                yield from _constants(leaf)
            elif isinstance(leaf, np.ndarray | jax.Array):
                yield leaf


def _is_program(value: Any) -> bool:
    return isinstance(value, core.ClosedJaxpr | core.Jaxpr)


def _numbers(constant: Any) -> np.ndarray:
    kind = getattr(constant, "dtype", None)
    if kind is not None and jnp.issubdtype(kind, jax.dtypes.extended):
        constant = jax.random.key_data(constant)
    return np.asarray(constant)
