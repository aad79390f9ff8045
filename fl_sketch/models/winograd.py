"""Pooled convolutions with fewer multiplications, for CPUs: Winograd's F(2x2, 3x3).

Four neighbouring outputs of a 3x3 kernel, a tile, are 36 products. Sixteen do where
the 4x4 inputs and the kernel are first added up among themselves. A layer then is 16
products of matrices, of (tiles, channels) and (channels, features), each on what a
fused loop has just written. In float32 errors are no larger than those of a plain
convolution, with which values and gradients agree to six digits; in bfloat16 and
float16 they are two to three times as large. An infinite input makes NaN of its tiles.

A tile is also the window of a 2x2 pool, whose maxima are taken before outputs are
written. Which of the four it was is kept in a byte, so that the backward pass has
nothing to compare.

Reference: Lavin and Gray (2016), Fast Algorithms for Convolutional Neural Networks,
section 4.1, with their B, G and A.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.models.forms import Four, choice, given_to, plain, spread, windows

TILES = 1280  # about how many are worked on at a time, so that they stay in the cache
FEWEST = 32  # tiles of a block, below which a plain product is faster
Grid = tuple[tuple[jax.Array, ...], ...]  # by row and column of a tile


def is_worth_it(shape: tuple[int, ...]) -> bool:
    """Returns whether products of padded images of a `shape` are long enough.

    They are not where images are small and there are few of them, or a prime number.
    """
    tiles = (shape[1] // 2 - 1) * (shape[2] // 2 - 1)
    return shape[0] > 0 and tiles * _block(shape) >= FEWEST


def pooled_winograd(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Returns maxima of 2x2 windows of a 3x3 convolution, without an odd row or column.

    Args:
      x: images in NHWC order, already padded, of 4x4 at least.
      kernel: a kernel in HWIO order.
    """
    rows, cols = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    return _pooled(x[:, :rows, :cols], kernel)


@jax.custom_vjp
def _pooled(x, kernel):
    return _pooled_forward(x, kernel)[0]


def _pooled_forward(x, kernel):
    def on_cpu(x, kernel):
        factors = _factors(kernel)
        return _by_blocks(lambda x: choice(_outputs(x, factors)), x)

    def elsewhere(x, kernel):
        return choice(windows(plain(x, kernel)))

    y, places = lax.platform_dependent(x, kernel, cpu=on_cpu, default=elsewhere)
    return y, (x, kernel, places)


def _pooled_backward(saved, dy):
    def elsewhere(x, kernel, places, dy):
        return jax.vjp(plain, x, kernel)[1](spread(given_to(places, dy)))

    return lax.platform_dependent(*saved, dy, cpu=_gradients, default=elsewhere)


_pooled.defvjp(_pooled_forward, _pooled_backward)


def _gradients(x, kernel, places, dy):
    """Returns the gradients by images and kernel, as `_pooled` has them."""
    factors = _factors(kernel)

    def of_block(block):
        x, *given = block
        outputs = jax.tree.map(lambda y: y.reshape(-1, y.shape[-1]), given_to(*given))
        (products,) = jax.linear_transpose(_sums, _sixteen(outputs[0][0]))(outputs)
        dfactors = jax.tree.map(lambda a, b: a.T @ b, _tiles(x), products)
        dtiles = jax.tree.map(lambda a, b: a @ b.T, products, factors)
        (dx,) = jax.linear_transpose(_tiles, x)(dtiles)
        return dx, jax.tree.map(lambda leaf: leaf[None], dfactors)

    dx, dfactors = _by_blocks(of_block, (x, places, dy))
    dfactors = jax.tree.map(lambda leaf: leaf.sum(0), dfactors)
    return dx, jax.linear_transpose(_factors, kernel)(dfactors)[0]


def _by_blocks(function: Callable[[Any], Any], given: Any) -> Any:
    """Returns what a function makes of some examples at a time.

    There are two blocks at least, if there are two examples: what a loop has written,
    XLA does not compute again for each of its sixteen readers.
    """
    size = _block(jax.tree.leaves(given)[0].shape)
    blocks = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), given)
    made = lax.map(function, blocks)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), made)


def _block(shape: tuple[int, ...]) -> int:
    """Returns how many examples of images of a `shape` are worked on together."""
    examples, height, width, _ = shape
    most = max(1, min(TILES * 4 // (height * width), examples // 2))
    return next(number for number in range(most, 0, -1) if examples % number == 0)


def _outputs(x: jax.Array, factors: Grid) -> Four:
    """Returns the outputs of images, by their place in a tile."""
    sums = _sums(jax.tree.map(jnp.matmul, _tiles(x), factors))
    shape = len(x), x.shape[1] // 2 - 1, x.shape[2] // 2 - 1, -1
    return jax.tree.map(lambda y: y.reshape(shape), sums)


def _tiles(x: jax.Array) -> Grid:
    """Returns the transformed 4x4 inputs of all tiles, each (tiles, channels).

    Rows come before columns, and even ones apart from odd ones, so that the adjoint is
    made of sums of lines that lie side by side.
    """

    def transformed(x, axis):
        last = x.shape[axis] // 2 - 1
        halves = [lax.slice_in_dim(x, begin, None, 2, axis) for begin in (0, 1)]
        first = (lax.slice_in_dim(half, 0, last, axis=axis) for half in halves)
        second = (lax.slice_in_dim(half, 1, None, axis=axis) for half in halves)
        return _sums_of_inputs(*first, *second)

    grid = tuple(transformed(row, 2) for row in transformed(x, 1))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, leaf.shape[-1]), grid)


def _factors(kernel: jax.Array) -> Grid:
    """Returns the transformed kernel, each (channels, features)."""
    return _twice(_sums_of_kernel, tuple(tuple(row) for row in kernel))


def _sums(products: Grid) -> Four:
    """Returns the four outputs of tiles, from their sixteen products."""
    (a, b), (c, d) = _twice(_sums_of_products, products)
    return (a, b), (c, d)


def _sixteen(array: jax.Array) -> Grid:
    return ((array,) * 4,) * 4


def _twice(linear: Callable, grid: Grid) -> Grid:
    """Returns what a `linear` map of lines makes of a grid, by rows and by columns."""
    columns = [linear(*column) for column in zip(*grid, strict=True)]
    return tuple(linear(*row) for row in zip(*columns, strict=True))


def _sums_of_inputs(a, b, c, d):
    return a - c, b + c, c - b, b - d


def _sums_of_kernel(a, b, c):
    ends, middle = (a + c) / 2, b / 2
    return a, ends + middle, ends - middle, c


def _sums_of_products(a, b, c, d):
    return a + b + c, b - c - d
