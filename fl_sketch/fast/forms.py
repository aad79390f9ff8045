"""Layers in the form that is the fastest on a platform.

In float32 CPUs compute the forms of `fast.cpu`, and GPUs those of `fast.gpu`. Other
platforms and types get those of XLA. All agree up to rounding, in values and in
gradients, where numbers are finite. On CPUs a number that is not finite may reach
neighbours in its own image that a plain convolution spares.

The kernels of clients differ, and under `vmap` XLA convolves by groups. On CPUs that
takes longer than a loop over clients.
"""

import functools

import jax
import jax.numpy as jnp

from fl_sketch.core.platforms import by_platform
from fl_sketch.fast import cpu, gpu, plain
from fl_sketch.fast.pooling import Pads, max_pool


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
    precision: plain.Precision = None,
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

    def of_xla(x, kernel):
        y = plain.convolve(x, kernel, pads, strides, precision)
        return max_pool(y) if pool else y

    if x.dtype != jnp.float32:  # the forms of CPUs are less exact in other types
        return of_xla(x, kernel)
    on_cpu, on_gpu = (
        functools.partial(room.convolve, pads=pads, strides=strides, pool=pool)
        for room in (cpu, gpu)
    )
    if not _is_usual(precision):
        on_gpu = None
    return by_platform(x, kernel, cpu=on_cpu, cuda=on_gpu, default=of_xla)


def depthwise(
    x: jax.Array,
    kernel: jax.Array,
    pads: Pads,
    strides: int = 1,
    *,
    precision: plain.Precision = None,
) -> jax.Array:
    """Returns the convolution of images (NHWC) in which each channel has its kernel.

    Args:
      x: images, float32.
      kernel: height, width, 1, channels.
      pads: zeros (before, after) the height and the width.
      strides: steps in both directions.
      precision: of the convolution of XLA.
    """

    def of_xla(x, kernel):
        return plain.grouped(x, kernel, pads, strides, x.shape[-1], precision)

    def on_cpu(x, kernel):
        return cpu.depthwise(x, kernel[:, :, 0], pads, strides)

    return by_platform(x, kernel, cpu=on_cpu, default=of_xla)


def _is_usual(precision: plain.Precision) -> bool:
    """Returns whether a precision is that of all products, which GPUs' forms have."""
    names = {p.name.lower() for p in precision or ()}
    return names <= {jax.config.jax_default_matmul_precision}  # pyright: ignore[reportAttributeAccessIssue]


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Returns `x @ kernel` of rows `x`, both float32.

    On CPUs its gradient is written by hand: `jax.jvp` works for the gradient, not for
    the product itself.
    """
    return by_platform(x, kernel, cpu=cpu.product, default=jnp.matmul)
