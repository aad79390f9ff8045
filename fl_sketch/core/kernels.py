"""Runs a GPU kernel, written in Pallas, on a grid of programs."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fl_sketch.core.trees import varying_like


def launch(
    kernel: Callable,
    *arrays: jax.Array,
    shape: tuple[int, ...],
    grid: tuple[int, ...],
    warps: int = 4,
    stages: int | None = None,
    interpret: bool = False,
) -> jax.Array:
    """Returns the result of a kernel, float32 of a shape.

    Args:
      kernel: a function of references to the arrays and to the result.
      stages: how many iterations of a loop are loaded ahead; None: Triton's default.
      interpret: whether to run it without a GPU, slowly, to test it.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    first, *more = arrays  # all must vary over the same devices
    first = varying_like(first, *more)
    kind = jax.typeof(first).manual_axis_type
    return pl.pallas_call(
        kernel,
        jax.ShapeDtypeStruct(shape, jnp.float32, manual_axis_type=kind),
        grid=grid,
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=stages),
    )(first, *(varying_like(array, first) for array in more))
