"""Pooled convolutions of few channels for CPUs, with examples as the innermost axis."""

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.fast.pooling import Pads, largest


def batch_minor(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    """Returns the maxima of 2x2 windows of a convolution, in NHWC order.

    One matrix product has the four places of a window as four blocks of rows, so that
    the pool compares whole blocks. Its right factor holds, for each window, the patch
    that the four places share. With few channels and several examples the pieces of
    images in it are contiguous. An odd last row or column is left out.
    """
    height, width, channels, features = kernel.shape
    inside = jnp.pad(x.transpose(3, 1, 2, 0), ((0, 0), *pads, (0, 0)))
    columns = lines(jnp.stack(lines(inside, 1, height + 1)), 3, width + 1)
    patches = jnp.stack(columns)  # width + 1, height + 1, channels, windows, examples
    places = [(i, j) for i in (0, 1) for j in (0, 1)]
    blocks = jnp.stack(
        [jnp.pad(kernel, ((i, 1 - i), (j, 1 - j), (0, 0), (0, 0))) for i, j in places]
    ).transpose(0, 4, 2, 1, 3)  # places, features, width + 1, height + 1, channels
    shared = (height + 1) * (width + 1) * channels
    y = blocks.reshape(-1, shared) @ patches.reshape(shared, -1)
    rows, cols = patches.shape[-3:-1]
    maxima = largest(*y.reshape(4, features, -1))  # flat: one loop
    return maxima.reshape(features, rows, cols, len(x)).transpose(3, 1, 2, 0)


def lines(x: jax.Array, axis: int, size: int) -> list[jax.Array]:
    """Returns the first lines of windows two apart, the second ones, up to the last.

    Even and odd lines are separated first, and one axis at a time. The adjoint then
    adds arrays without gaps. With gaps, XLA would make one loop of everything, which
    checks the place of every number.

    Args:
      x: an array.
      axis: the axis of the lines.
      size: the number of lines of a window.
    """
    count = (x.shape[axis] - size) // 2 + 1
    halves = [lax.slice_in_dim(x, odd, None, 2, axis) for odd in (0, 1)]
    return [
        lax.slice_in_dim(halves[i % 2], i // 2, i // 2 + count, axis=axis)
        for i in range(size)
    ]
