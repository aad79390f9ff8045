"""Pooled convolutions with fewer multiplications, for CPUs: Winograd's F(2x2, 3x3).

The four outputs of a 3x3 kernel in a window of 2x2 take 36 products. Sixteen are enough
if sums of the 4x4 inputs, a tile, and of the kernel are multiplied instead. A layer is
then 16 products of matrices (tiles, channels) and (channels, features). In float32 the
errors are no larger than those of a plain convolution. An infinite input makes NaN of
its tiles.

Inputs are added along the rows of an image first. The remaining summands are whole
lines apart, so these loops compute no indices. They continue over the ends of images:
the line of tiles between two images mixes both and is removed at the end.

The window of a tile is that of the pool. Its maximum is taken before outputs are
written, and its place is kept in a byte for the backward pass.

Reference: Lavin and Gray (2016), Fast Algorithms for Convolutional Neural Networks,
section 4.1, with their B, G and A.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.fast.cpu.dense import product
from fl_sketch.fast.cpu.pooled import lines

WIDE_LAYER = 2048  # input times output channels from which fewer products are faster
TILES = 1280  # about how many are worked on at a time, so that they stay in the cache
FEWEST = 32  # tiles of a block, below which a plain product is faster
Grid = tuple[tuple[jax.Array, ...], ...]  # by row and column of a tile


def is_worth_it(images: tuple[int, ...], kernel: tuple[int, ...]) -> bool:
    """Returns whether padded `images` and a `kernel` of these shapes are long products.

    They are not where images are small and there are few of them, or a prime number.
    """
    tiles = (images[1] // 2 - 1) * (images[2] // 2 - 1)
    wide = kernel[:2] == (3, 3) and kernel[2] * kernel[3] >= WIDE_LAYER
    return wide and images[0] > 0 and tiles * _block(images) >= FEWEST


def pooled(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Returns the maxima of 2x2 windows of a 3x3 convolution of padded images."""
    rows, cols = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    return _pooled(x[:, :rows, :cols], kernel)


@jax.custom_vjp
def _pooled(x, kernel):
    return _forward(x, kernel)[0]


def _forward(x, kernel):
    factors, width = _kernel_sums(kernel), _width(x.shape)

    def of_block(sums):
        return _choice(*_outputs(sums, factors, width, jnp.matmul))

    maxima, places = lax.map(of_block, _row_sums(x))
    return _by_image(maxima, x.shape), (x, kernel, places)


def _backward(residuals, dy):
    x, kernel, places = residuals
    sums, of_sums = jax.vjp(_row_sums, x)
    factors, of_factors = jax.vjp(_kernel_sums, kernel)
    by_image = functools.partial(_by_image, shape=x.shape)
    (dmaxima,) = jax.vjp(by_image, places.astype(dy.dtype))[1](dy)

    def of_block(block):
        sums, places, dmaxima = block

        def maxima(sums, factors):
            a, b, c, d = _outputs(sums, factors, _width(x.shape), product)
            last = jnp.where(places == 2, c, d)
            return jnp.where(places == 0, a, jnp.where(places == 1, b, last))

        return jax.vjp(maxima, sums, factors)[1](dmaxima)

    dsums, dfactors = lax.map(of_block, (sums, places, dmaxima))
    dfactors = jax.tree.map(lambda leaf: leaf.sum(0), dfactors)
    return *of_sums(dsums), *of_factors(dfactors)


_pooled.defvjp(_forward, _backward)


def _choice(a, b, c, d):
    """Returns the maxima of windows, and which of the four places each is from."""
    above, below = jnp.maximum(a, b), jnp.maximum(c, d)
    place = jnp.where(below > above, jnp.where(d > c, 3, 2), jnp.where(b > a, 1, 0))
    return jnp.maximum(above, below), place.astype(jnp.uint8)


def _block(shape: tuple[int, ...]) -> int:
    """Returns how many examples of images of a `shape` are worked on together.

    There are at least two blocks if there are two examples: XLA does not recompute what
    a loop has written for each of its sixteen readers.
    """
    examples, height, width, _ = shape
    most = max(1, min(TILES * 4 // (height * width), examples // 2))
    return next(number for number in range(most, 0, -1) if examples % number == 0)


def _width(shape: tuple[int, ...]) -> int:
    """Returns how many tiles there are in a line of images of a `shape`."""
    return shape[2] // 2 - 1


def _row_sums(x: jax.Array) -> Grid:
    """Returns the inputs' four sums along rows, each for even lines and for odd ones.

    Each array has the shape (blocks, lines of all images of a block, channels).
    """
    blocks = len(x) // _block(x.shape)
    return tuple(
        tuple(half.reshape(blocks, -1, x.shape[-1]) for half in lines(leaf, 1, 2))
        for leaf in _of_inputs(*lines(x, 2, 4))
    )


def _outputs(
    sums: Grid, factors: Grid, width: int, matmul: Callable
) -> tuple[jax.Array, ...]:
    """Returns the four outputs of the tiles of a block, each (tiles, features).

    Args:
      sums: the block's part of `_row_sums`.
      factors: the sums of the kernel.
      width: the number of tiles of a line.
      matmul: the product of matrices.
    """
    columns = [
        _of_inputs(even[:-width], odd[:-width], even[width:], odd[width:])
        for even, odd in sums
    ]
    tiles = tuple(zip(*columns, strict=True))
    (a, b), (c, d) = _twice(_of_products, jax.tree.map(matmul, tiles, factors))
    return a, b, c, d


def _by_image(flat: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns tiles by images, rows and columns, without those of two images.

    Args:
      flat: the tiles of every block.
      shape: the shape of the images.
    """
    width = _width(shape)
    lined = jnp.pad(flat, ((0, 0), (0, width), (0, 0)))
    return lined.reshape(shape[0], shape[1] // 2, width, -1)[:, :-1]


def _kernel_sums(kernel: jax.Array) -> Grid:
    """Returns the sums of the kernel for each place of a tile: (channels, features)."""
    return _twice(_of_kernel, tuple(tuple(row) for row in kernel))


def _twice(linear: Callable, grid: Grid) -> Grid:
    """Applies a `linear` map of lines to the columns and then the rows of a grid."""
    columns = [linear(*column) for column in zip(*grid, strict=True)]
    return tuple(linear(*row) for row in zip(*columns, strict=True))


def _of_inputs(a, b, c, d):
    return a - c, b + c, c - b, b - d


def _of_kernel(a, b, c):
    ends, middle = (a + c) / 2, b / 2
    return a, ends + middle, ends - middle, c


def _of_products(a, b, c, d):
    return a + b + c, b - c - d
