"""Convolutions that are fast in the loops of federated learning.

XLA's convolutions are slow on CPUs inside loops. Under `jax.vmap` over clients, whose
kernels differ, they become grouped convolutions, which are slow on all devices. The
functions here have the signature of `lax.conv_general_dilated`, which flax's layers
take as an argument. They agree with it up to rounding, in values and gradients, where
numbers are finite.

>>> import flax.linen as nn
>>> layer = nn.Conv(5, (3, 3), conv_general_dilated=conv)
>>> layer.init_with_output(jax.random.key(0), jnp.ones((2, 8, 8, 3)))[0].shape
(2, 8, 8, 5)
"""

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core.platforms import by_platform
from fl_sketch.models import convolution_cpu
from fl_sketch.models.convolution_cpu import Pads, largest

IMAGES = ("NHWC", "HWIO", "NHWC")
LARGEST = 11  # places of a kernel, high and wide
FLOATS = (jnp.float32, jnp.bfloat16, jnp.float16)


def conv(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    **options: Any,
) -> jax.Array:
    """`lax.conv_general_dilated` with its arguments, fast for images in NHWC order.

    Groups, dilations and other orders are left to XLA. On a CPU the gradient of a
    convolution without strides is written by hand: `jax.jvp` works for such a gradient,
    and not for the convolution itself.
    """
    pads = zeros_around(lhs, rhs, window_strides, padding, options)
    if pads is None:
        return lax.conv_general_dilated(lhs, rhs, window_strides, padding, **options)
    strides, precision = tuple(window_strides), options.get("precision")
    products = functools.partial(
        patches, pads=pads, strides=strides, precision=precision
    )
    on_cpu = products
    if lhs.dtype == jnp.float32 and strides == (1, 1):
        on_cpu = functools.partial(convolution_cpu.conv, pads=pads)
    return by_platform(lhs, rhs, cpu=on_cpu, default=products)


def conv_pool(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    **options: Any,
) -> jax.Array:
    """The maxima of 2x2 windows of `conv`, without an odd last row or column.

    A bias and a relu may follow the pool instead of the convolution: both keep the
    order of numbers. `nn.relu(nn.Conv(6, (5, 5), conv_general_dilated=conv_pool)(x))`
    is `nn.max_pool(nn.relu(nn.Conv(6, (5, 5))(x)), (2, 2), (2, 2))`.
    """
    pads = zeros_around(lhs, rhs, window_strides, padding, options)

    def apart(lhs, rhs):
        y = conv(lhs, rhs, window_strides, padding, **options)
        return max_pool(y, (2, 2), (2, 2))

    if pads is None or lhs.dtype != jnp.float32 or tuple(window_strides) != (1, 1):
        return apart(lhs, rhs)
    on_cpu = convolution_cpu.pooled(lhs.shape, rhs.shape, pads)
    return by_platform(lhs, rhs, cpu=on_cpu or apart, default=apart)


def max_pool(
    inputs: jax.Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
) -> jax.Array:
    """`flax.linen.max_pool` with a fast derivative for windows of 2x2 in steps of two.

    That of XLA is a scatter. Values and gradients are the same, also where numbers are
    equal: the gradient goes to the first of them.
    """
    window, steps = tuple(window_shape), tuple(strides or ())
    if window != (2, 2) or steps != window or padding != "VALID" or inputs.ndim < 3:
        return nn.max_pool(inputs, window, strides and steps, padding)
    *lead, height, width, channels = inputs.shape
    rows, cols = height // 2, width // 2
    even = inputs[..., : 2 * rows, : 2 * cols, :]
    windows = even.reshape(*lead, rows, 2, cols, 2, channels)
    return largest(*(windows[..., i, :, j, :] for i in (0, 1) for j in (0, 1)))


def patches(
    x: jax.Array,
    kernel: jax.Array,
    *,
    pads: Pads,
    strides: tuple[int, ...],
    precision: Any = None,
) -> jax.Array:
    """A convolution as a product of patches and kernel, which batches well."""
    high, wide, _, features = kernel.shape
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    down, right = strides
    rows, cols = (x.shape[1] - high) // down + 1, (x.shape[2] - wide) // right + 1
    places = [
        x[:, i : i + down * rows : down, j : j + right * cols : right][:, :rows, :cols]
        for i in range(high)
        for j in range(wide)
    ]
    kernel = kernel.reshape(-1, features)
    return jnp.matmul(jnp.concatenate(places, -1), kernel, precision=precision)


def zeros_around(
    lhs: Any, rhs: Any, window_strides: Sequence[int], padding: Any, options: Any
) -> Pads | None:
    """Returns the zeros before and after both axes of images.

    None: it is not a plain convolution of images, and left to XLA. Arguments are those
    of `conv`, or their shapes.
    """
    numbers = options.get("dimension_numbers")
    ones = {
        *(options.get("lhs_dilation") or ()),
        *(options.get("rhs_dilation") or ()),
        options.get("feature_group_count", 1),
        options.get("batch_group_count", 1),
    }
    if (
        lhs.ndim != 4
        or lax.conv_dimension_numbers(lhs.shape, rhs.shape, numbers)
        != lax.conv_dimension_numbers(lhs.shape, rhs.shape, IMAGES)
        or ones != {1}
        or lhs.dtype not in FLOATS
        or options.get("preferred_element_type") not in (None, lhs.dtype)
        or options.get("out_sharding") is not None
        or lhs.dtype != rhs.dtype
        or lhs.shape[3] != rhs.shape[2]
    ):
        return None
    sizes, window = lhs.shape[1:3], rhs.shape[:2]
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(sizes, window, window_strides, padding)
    high, wide = ((int(before), int(after)) for before, after in padding)
    usual = 0 not in (*lhs.shape, *rhs.shape) and max(window) <= LARGEST
    for size, side, pad in zip(sizes, window, (high, wide), strict=True):
        usual &= 0 <= min(pad) <= max(pad) < side <= size + sum(pad)
    return (high, wide) if usual else None
