"""Any function in its fast form: traced, and computed with other layers."""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax
from jax.extend.core import jaxpr_as_fun

from fl_sketch.fast.nested import AS_WRITTEN
from fl_sketch.fast.plan import planned

Function = TypeVar("Function", bound=Callable)


def form(function: Function) -> Function:
    """Returns a function in its fast form, to be differentiated or evaluated.

    A call traces it once, and then computes its convolutions, pools and dense layers as
    `fast.forms` does. That agrees with the function up to rounding, in values and
    in gradients. The loop around it may be a `lax.scan`, and `jax.vmap` may batch it.
    `jax.jvp` works for its gradient, not for itself. A function without such layers is
    computed as it was traced.

    >>> import jax.numpy as jnp
    >>> plain = lambda x: jnp.sin(x).sum()
    >>> str(jax.make_jaxpr(form(plain))(1.0)) == str(jax.make_jaxpr(plain)(1.0))
    True

    Args:
      function: a function of trees of arrays.
    """

    @functools.wraps(function)
    def played(*args, **kwargs):
        trace = jax.make_jaxpr(function, return_shape=True)
        closed, shapes = trace(*args, **kwargs)
        play = planned(closed) or jaxpr_as_fun(closed)
        results = play(*jax.tree.leaves((args, kwargs)))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return played  # pyright: ignore[reportReturnType]


def as_written(function: Function) -> Function:
    """Returns a function, as a loss or a part of a model, that `form` leaves alone.

    Args:
      function: a function of trees of arrays.
    """

    def left(*args, **kwargs):
        return function(*args, **kwargs)

    left.__name__ = AS_WRITTEN
    jitted = jax.jit(left)

    @functools.wraps(function)
    def called(*args, **kwargs):
        return jitted(*args, **kwargs)

    return called  # pyright: ignore[reportReturnType]
