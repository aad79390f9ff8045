"""The convolution of XLA and its gradients."""

from typing import Any

import jax
from jax import lax

from fl_sketch.fast.pooling import Pads

Precision = Any  # of products, as `lax.conv_general_dilated` takes it


def grouped(
    x: jax.Array,
    kernel: jax.Array,
    pads: Pads,
    strides: int,
    groups: int,
    precision: Precision = None,
) -> jax.Array:
    """Returns the convolution of groups of channels (NHWC) with a kernel (HWIO)."""
    return lax.conv_general_dilated(
        x,
        kernel,
        (strides, strides),
        pads,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
        precision=precision,
    )


def product(
    x: jax.Array,
    kernel: jax.Array,
    pads: Pads,
    strides: int,
    precision: Precision = None,
) -> jax.Array:
    """Returns the convolution of images (NHWC) with a kernel (HWIO), in NHWC order."""
    return grouped(x, kernel, pads, strides, 1, precision)


def gradients(
    x: jax.Array,
    kernel: jax.Array,
    dy: jax.Array,
    pads: Pads,
    strides: int,
    precision: Precision = None,
) -> tuple[jax.Array, jax.Array]:
    """Returns the gradients of the images and of the kernel, for that of the output."""
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


# The gradients of jax name their sharding. With one, jax cannot batch a convolution
# twice, over the clients and over the points of a sweep, where points share the images.
# The gradients above do not. `jax.jvp` works for them, not for the layer itself.
convolve = jax.custom_vjp(product, nondiff_argnums=(2, 3, 4))


def _forward(x, kernel, pads, strides, precision):
    return product(x, kernel, pads, strides, precision), (x, kernel)


def _backward(pads, strides, precision, residuals, dy):
    x, kernel = residuals
    return gradients(x, kernel, dy, pads, strides, precision)


convolve.defvjp(_forward, _backward)
