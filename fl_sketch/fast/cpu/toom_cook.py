"""Pooled convolutions of few channels with fewer multiplications, for CPUs.

Two neighbouring outputs of a row of k numbers of a kernel take 2k products. If sums of
the k + 1 inputs and of the kernel are multiplied instead, k + 1 are enough: the sums
are values of polynomials, and k + 1 points determine a product (Toom and Cook). The two
outputs are in one window of a 2x2 pool. The two rows of a window share one product of
matrices, as in `batch_minor`. That saves nothing, but makes the rows of the product
long enough from `SOME_CHANNELS` on.

In float32 values and gradients agree with those of a plain convolution to six digits.
Outputs that are equal may differ by rounding here. An infinite input makes NaN of its
windows.
"""

import functools
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.fast.cpu.pooled import lines
from fl_sketch.fast.pooling import Pads, larger

SOME_CHANNELS = 4  # input channels from which fewer products are faster
POINTS = (0.0, 1.0, -1.0, 2.0, -0.5)  # of the polynomials, besides infinity


def is_worth_it(kernel: tuple[int, ...]) -> bool:
    """Returns whether a kernel of this shape has channels enough and 2 to 5 columns."""
    return kernel[2] >= SOME_CHANNELS and 2 <= kernel[1] <= len(POINTS)


def pooled(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    """Returns the maxima of 2x2 windows of a convolution, in NHWC order.

    Examples are the innermost axis. An odd last row or column is left out.
    """
    height, width, channels, features = kernel.shape
    of_inputs, of_kernel, of_products = _weights(width)
    inside = jnp.pad(x.transpose(3, 1, 2, 0), ((0, 0), *pads, (0, 0)))
    columns = jnp.stack(_sums(of_inputs, lines(inside, 2, width + 1)))
    patches = jnp.stack(lines(columns, 2, height + 1), 1)
    rows, cols = patches.shape[3:5]  # after points, height + 1, channels

    factors = jnp.stack(_sums(of_kernel, kernel.transpose(1, 0, 2, 3)))
    blocks = jnp.stack(
        [jnp.pad(factors, ((0, 0), (i, 1 - i), (0, 0), (0, 0))) for i in (0, 1)], 1
    ).transpose(
        0, 1, 4, 2, 3
    )  # points, rows of a window, features, height + 1, channels
    shared = width + 1, -1, (height + 1) * channels
    products = blocks.reshape(shared) @ patches.reshape(width + 1, shared[2], -1)
    left, right = _sums(of_products, products)
    maxima = _larger_row(larger(left, right).reshape(2, features, -1))
    return maxima.reshape(features, rows, cols, len(x)).transpose(3, 1, 2, 0)


@jax.custom_jvp
def _larger_row(rows):
    """Returns the `larger` of two rows, as a reduction, whose result XLA stores.

    With `larger` itself, a round of LeNet takes 5 % longer: the readers of the result
    compute it again, in their own order.
    """
    return jnp.max(rows, 0)


@_larger_row.defjvp
def _tangent(primals, tangents):
    (above, below), (of_above, of_below) = primals[0], tangents[0]
    second = (below > above) | jnp.isnan(below)
    return _larger_row(*primals), jnp.where(second, of_below, of_above)


@functools.cache
def _weights(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns B, G and A, of which `A @ ((B @ inputs) * (G @ kernel))` are two outputs.

    Kernel and outputs are taken as coefficients of polynomials. G and the adjoint of A
    give their values at the points, and at infinity: the last coefficient. B is the
    adjoint of the map from values of a product to its coefficients, with the
    denominators of that map in G.

    Args:
      size: the length of the kernel; there are `size + 1` inputs.
    """
    points = np.array(POINTS[:size])
    of_roots = np.polynomial.polynomial.polyfromroots
    others = [points[points != point] for point in points]

    def values(coefficients):
        powers = np.vander(points, coefficients, increasing=True)
        return np.vstack([powers, np.eye(coefficients)[-1]])

    of_inputs = [[*of_roots(rest), 0] for rest in others] + [of_roots(points)]
    below = [np.prod(p - rest) for p, rest in zip(points, others, strict=True)] + [1]
    return np.array(of_inputs), values(size) / np.array(below)[:, None], values(2).T


def _sums(weights: np.ndarray, arrays: Iterable[jax.Array]) -> list[jax.Array]:
    """Returns a sum of arrays for each row of weights, without those of weight zero."""
    sums = []
    for row in weights.tolist():
        first, *rest = (w * a for w, a in zip(row, arrays, strict=True) if w)
        sums.append(sum(rest, first))
    return sums
