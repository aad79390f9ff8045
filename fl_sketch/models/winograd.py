"""Pooled convolutions with fewer multiplications, for CPUs: Winograd's F(2x2, 3x3).

Four neighbouring outputs of a 3x3 kernel, a tile, are 36 products. Sixteen do where
the 4x4 inputs and the kernel are first added up among themselves. A layer then is 16
products of matrices, of (tiles, channels) and (channels, features), each on what a
fused loop has just written. In float32 errors are no larger than those of a plain
convolution, with which values and gradients agree to six digits; in bfloat16 and
float16 they are several times as large. An infinite input makes NaN of its tiles.

Inputs are added up along the rows of an image first. What is left to add lies a line
of tiles apart then, and a line apart in memory, so that those loops have no indices to
work out. They run on over the ends of images: one line of tiles between two of them is
made of both, and left out at the end.

A tile is also the window of a 2x2 pool, whose maxima are taken before outputs are
written. Which of the four it was is kept in a byte, so that the backward pass has
nothing to compare.

Reference: Lavin and Gray (2016), Fast Algorithms for Convolutional Neural Networks,
section 4.1, with their B, G and A.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.models.forms import (
    Four,
    choice,
    given_to,
    gradients_of_jax,
    lines,
    of_jax,
    spread,
    windows,
)

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
        factors, width = _factors(kernel), _width(x.shape)

        def of_block(parts):
            products = jax.tree.map(jnp.matmul, _tiles(parts, width), factors)
            return choice(_sums(products))

        made = lax.map(of_block, _parts(x))
        return jax.tree.map(lambda leaf: _without_seams(leaf, x.shape), made)

    def elsewhere(x, kernel):
        return choice(windows(of_jax(x, kernel)))

    y, places = lax.platform_dependent(x, kernel, cpu=on_cpu, default=elsewhere)
    return y, (x, kernel, places)


def _pooled_backward(saved, dy):
    def elsewhere(x, kernel, places, dy):
        return gradients_of_jax(x, kernel, spread(given_to(places, dy)))

    return lax.platform_dependent(*saved, dy, cpu=_gradients, default=elsewhere)


_pooled.defvjp(_pooled_forward, _pooled_backward)


def _gradients(x, kernel, places, dy):
    """Returns the gradients by images and kernel, as `_pooled` has them."""
    factors, width = _factors(kernel), _width(x.shape)

    def of_block(block):
        parts, *given = block
        outputs = given_to(*given)
        (products,) = jax.linear_transpose(_sums, _sixteen(outputs[0][0]))(outputs)
        tiles = functools.partial(_tiles, width=width)
        # The barrier keeps the turning out of the products, which are slow with it.
        turned = lax.optimization_barrier(jax.tree.map(jnp.transpose, tiles(parts)))
        dfactors = jax.tree.map(jnp.matmul, turned, products)
        dtiles = jax.tree.map(lambda a, b: a @ b.T, products, factors)
        (dparts,) = jax.linear_transpose(tiles, parts)(dtiles)
        return dparts, dfactors

    given = (_with_seams(leaf, x.shape) for leaf in (places, dy))
    dparts, dfactors = lax.map(of_block, (_parts(x), *given))
    (dx,) = jax.linear_transpose(_parts, x)(dparts)
    dfactors = jax.tree.map(lambda leaf: leaf.sum(0), dfactors)
    return dx, jax.linear_transpose(_factors, kernel)(dfactors)[0]


def _block(shape: tuple[int, ...]) -> int:
    """Returns how many examples of images of a `shape` are worked on together.

    There are two blocks at least, if there are two examples: what a loop has written,
    XLA does not compute again for each of its sixteen readers.
    """
    examples, height, width, _ = shape
    most = max(1, min(TILES * 4 // (height * width), examples // 2))
    return next(number for number in range(most, 0, -1) if examples % number == 0)


def _width(shape: tuple[int, ...]) -> int:
    """Returns how many tiles there are in a line of images of a `shape`."""
    return shape[2] // 2 - 1


def _parts(x: jax.Array) -> tuple[tuple[jax.Array, ...], ...]:
    """Returns the inputs' four sums along rows, those of even lines and of odd ones.

    Each array has the shape (blocks, lines of all images of a block, channels).
    """
    sums = _sums_of_inputs(*lines(x, 2, 4))
    blocks = len(x) // _block(x.shape)
    return tuple(
        tuple(half.reshape(blocks, -1, x.shape[-1]) for half in row)
        for row in zip(*(lines(leaf, 1, 2) for leaf in sums), strict=True)
    )


def _tiles(parts: Any, width: int) -> Grid:
    """Returns the transformed inputs of the tiles of a block, each (tiles, channels).

    Args:
      parts: the block's part of `_parts`.
      width: the number of tiles of a line.
    """
    columns = [
        _sums_of_inputs(even[:-width], odd[:-width], even[width:], odd[width:])
        for even, odd in zip(*parts, strict=True)
    ]
    return tuple(zip(*columns, strict=True))


def _without_seams(flat: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns tiles by images, rows and columns: without those of two images.

    Args:
      flat: the tiles of every block, as they come of `_tiles`.
      shape: the shape of the images.
    """
    width = _width(shape)
    lined = jnp.pad(flat, ((0, 0), (0, width), (0, 0)))
    return lined.reshape(shape[0], shape[1] // 2, width, -1)[:, :-1]


def _with_seams(tiles: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns tiles of every block, with zeros for tiles of two images.

    Args:
      tiles: the tiles by images, rows and columns.
      shape: the shape of the images.
    """
    lined = jnp.pad(tiles, ((0, 0), (0, 1), (0, 0), (0, 0)))
    blocks = shape[0] // _block(shape)
    return lined.reshape(blocks, -1, tiles.shape[-1])[:, : -_width(shape)]


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
