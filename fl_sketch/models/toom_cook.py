"""Pooled convolutions of few channels with fewer multiplications, for CPUs.

Two outputs side by side are 2k products with a row of k numbers of a kernel; k + 1 do
where the inputs and the kernel are first added up among themselves: sums of products
are values of a polynomial, which k + 1 points determine (Toom and Cook). The two lie
in one window of a 2x2 pool. Over the rows nothing is saved: there a product has what
two outputs share as one row, as `forms.batch_minor` has, so that its rows are long
enough where an image has four channels or more.

In float32, values and gradients agree with those of a plain convolution to six digits.
In bfloat16 and float16 errors are many times those of a plain one, and float16 has no
room for sums of its largest numbers. An infinite input makes NaN of its windows.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.models.forms import Pads, first_larger, lines

POINTS = (0.0, 1.0, -1.0, 2.0, -0.5)  # where polynomials are taken, besides infinity


def pooled_toom_cook(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    """Returns maxima of 2x2 windows of a convolution, with examples innermost.

    An odd last row or column is left out.

    Args:
      x: images in NHWC order.
      kernel: a kernel in HWIO order, of two to five columns.
      pads: zeros (before, after) the height and the width.
    """
    height, width, channels, features = kernel.shape
    of_inputs, of_kernel, of_products = sums(width)
    inside = jnp.pad(x.transpose(3, 1, 2, 0), ((0, 0), *pads, (0, 0)))
    columns = combined(of_inputs, lines(inside, 2, width + 1))
    patches = jnp.stack(lines(jnp.stack(columns), 2, height + 1), 1)
    tall, wide, examples = patches.shape[-3:]

    factors = jnp.stack(combined(of_kernel, list(kernel.transpose(1, 0, 2, 3))))
    blocks = jnp.stack(  # one for each row of a window
        [jnp.pad(factors, ((0, 0), (i, 1 - i), (0, 0), (0, 0))) for i in (0, 1)], 1
    ).transpose(0, 1, 4, 2, 3)  # points, rows, features, height + 1, channels
    shared = (height + 1) * channels
    products = blocks.reshape(width + 1, -1, shared) @ patches.reshape(
        width + 1, shared, -1
    )
    left, right = combined(of_products, list(products))
    best = _larger_row(first_larger(left, right).reshape(2, features, -1))
    return best.reshape(features, tall, wide, examples).transpose(3, 1, 2, 0)


@jax.custom_jvp
def _larger_row(rows):
    """Returns the `first_larger` of two rows, as a reduction.

    XLA for CPUs writes what a reduction has found before others read it. Else it would
    be found again number by number, in the order of the dense layer that reads it.
    """
    return jnp.max(rows, 0)


@_larger_row.defjvp
def _tangent(primals, tangents):
    (above, below), (of_above, of_below) = primals[0], tangents[0]
    second = (below > above) | jnp.isnan(below)
    return _larger_row(*primals), jnp.where(second, of_below, of_above)


@functools.cache
def sums(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what is added up for two outputs of a kernel of a `size`.

    They are matrices B, G and A of which `A @ ((B @ inputs) * (G @ kernel))` are the
    two outputs of `size + 1` inputs. The kernel and the outputs' weights are seen as
    polynomials, at the points and at infinity, where the highest coefficient stands.
    B is the adjoint of what finds the coefficients of their product again.
    """
    points = POINTS[:size]

    def apart_from(left_out):
        others = [point for point in points if point != left_out]
        return np.polynomial.polynomial.polyfromroots(others)

    def values(coefficients):
        powers = np.vander(points, coefficients, increasing=True)
        return np.vstack([powers, np.eye(coefficients)[-1]])

    through = [np.append(apart_from(point), 0.0) for point in points]
    scales = [np.polyval(row[::-1], p) for row, p in zip(through, points, strict=True)]
    of_kernel = values(size) / np.array([*scales, 1.0])[:, None]
    return np.vstack([*through, apart_from(None)]), of_kernel, values(2).T


def combined(matrix: np.ndarray, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns sums of arrays, by the weights in the rows of a matrix.

    They are written number by number, so that XLA adds them up where they are read.

    Args:
      matrix: the weights, of which those that are zero cost nothing.
      arrays: as many arrays of one shape as the matrix has columns.
    """
    return [
        functools.reduce(
            jnp.add,
            [_times(float(w), a) for w, a in zip(row, arrays, strict=True) if w],
        )
        for row in matrix
    ]


def _times(weight: float, array: jax.Array) -> jax.Array:
    return array if weight == 1 else weight * array
