"""Layers in the form that is the fastest on a platform.

In float32 CPUs compute the forms of `fast.cpu`, and GPUs those of `fast.gpu`. Other
platforms and types get those of XLA. All agree up to rounding, in values and in
gradients, where numbers are finite. On CPUs a number that is not finite may reach
neighbours in its own image that a plain convolution spares.

The kernels of clients differ, and under `vmap` XLA convolves by groups. On CPUs that
takes longer than a loop over clients.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core.platforms import by_platform
from fl_sketch.fast import cpu, gpu
from fl_sketch.fast.pooling import Pads, max_pool

Precision = Any  # of products, as `lax.conv_general_dilated` takes it


@functools.partial(
    jax.jit, static_argnames=("pads", "strides", "pool", "precision"), inline=True
)
def convolve(
    x: jax.Array,
    kernel: jax.Array,
    pads: Pads,
    strides: int = 1,
    *,
    pool: bool = False,
    precision: Precision = None,
) -> jax.Array:
    """Returns the convolution of images (NHWC) with a kernel (HWIO), in NHWC order.

    Args:
      x: images.
      kernel: height, width, input channels as the images have, output channels.
      pads: zeros (before, after) the height and the width, fewer than the kernel's.
      strides: steps in both directions.
      pool: whether to return the maxima of 2x2 windows, without an odd last row or
        column. Strides must be 1.
      precision: of the convolution of XLA.
    """

    def plain(x, kernel):
        y = _plain(x, kernel, pads, strides, precision)
        return max_pool(y) if pool else y

    if x.dtype != jnp.float32:  # the forms of CPUs are less exact in other types
        return plain(x, kernel)
    on_cpu, on_gpu = (
        functools.partial(room.convolve, pads=pads, strides=strides, pool=pool)
        for room in (cpu, gpu)
    )
    if not _is_usual(precision):
        on_gpu = None
    return by_platform(x, kernel, cpu=on_cpu, cuda=on_gpu, default=plain)


def _is_usual(precision: Precision) -> bool:
    """Returns whether a precision is that of all products, which GPUs' forms have."""
    names = {p.name.lower() for p in precision or ()}
    return names <= {jax.config.jax_default_matmul_precision}  # pyright: ignore[reportAttributeAccessIssue]


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Returns `x @ kernel` of rows `x`, both float32.

    On CPUs its gradient is written by hand: `jax.jvp` works for the gradient, not for
    the product itself.
    """
    return by_platform(x, kernel, cpu=cpu.product, default=jnp.matmul)


def _convolved(x, kernel, pads: Pads, strides: int, precision: Precision) -> jax.Array:
    order = ("NHWC", "HWIO", "NHWC")
    steps = strides, strides
    return lax.conv_general_dilated(
        x, kernel, steps, pads, dimension_numbers=order, precision=precision
    )


# The gradients of jax name their sharding. With one, jax cannot batch a convolution
# twice, over the clients and over the points of a sweep, where points share the images.
# The gradients below do not. `jax.jvp` works for them, not for the layer itself.
_plain = jax.custom_vjp(_convolved, nondiff_argnums=(2, 3, 4))


def _forward(x, kernel, pads, strides, precision):
    return _convolved(x, kernel, pads, strides, precision), (x, kernel)


def _backward(pads, strides, precision, residuals, dy):
    x, kernel = residuals
    of_x, of_kernel = [], []
    for axis, (before, _) in enumerate(pads):
        size, window = x.shape[axis + 1], kernel.shape[axis]
        span = strides * (dy.shape[axis + 1] - 1) + 1  # of dy, with zeros between
        of_x.append((window - 1 - before, size + before - span))
        # What no window reached is left out: a padding may be negative.
        of_kernel.append((before, window - 1 + span - size - before))
    apart = (strides, strides)
    dx = lax.conv_general_dilated(
        dy,
        lax.rev(kernel, (0, 1)),
        (1, 1),
        of_x,
        lhs_dilation=apart,
        dimension_numbers=("NHWC", "HWOI", "NHWC"),
        precision=precision,
    )
    dkernel = lax.conv_general_dilated(
        x,
        dy,
        (1, 1),
        of_kernel,
        rhs_dilation=apart,
        dimension_numbers=("CHWN", "IHWO", "HWNC"),
        precision=precision,
    )
    return dx, dkernel


_plain.defvjp(_forward, _backward)
