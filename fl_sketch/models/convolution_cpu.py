"""The convolutions of `models.conv` for CPUs, in float32.

XLA for CPUs converts convolutions to the order of its kernels only at the start of a
program, not inside `lax.scan`. Federated learning is all loops. There the gradient of a
kernel, as jax writes it, takes tens of times as long.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

Pads = tuple[tuple[int, int], tuple[int, int]]  # before and after, in both directions

FEW_CHANNELS = 16  # in and out, up to which XLA uses its slower convolutions
MANY_EXAMPLES = 8  # from which examples may be the innermost axis
WIDE_LAYER = 2048  # input times output channels from which fewer products are faster
TILES = 1280  # about how many are worked on at a time, so that they stay in the cache
FEWEST = 32  # tiles of a block, below which a plain product is faster


def pooled(
    images: tuple[int, ...], kernel: tuple[int, ...], pads: Pads
) -> Callable[[jax.Array, jax.Array], jax.Array] | None:
    """Returns the convolution with a 2x2 pool that is fast for such shapes, if any."""
    examples, *sizes = images
    height, width = (n + sum(p) for n, p in zip(sizes, pads, strict=False))
    if kernel[:2] == (3, 3) and kernel[2] * kernel[3] >= WIDE_LAYER:
        tiles = (height // 2 - 1) * (width // 2 - 1)
        if tiles * _block((examples, height, width)) >= FEWEST:
            return functools.partial(winograd, pads=pads)
    windows = min(height - kernel[0], width - kernel[1]) > 0  # at least one
    if windows and kernel[2] < FEW_CHANNELS and examples >= MANY_EXAMPLES:
        return functools.partial(by_windows, pads=pads)
    return None


def _by_pairs(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    """Convolves; few channels as pairs of neighbouring columns.

    XLA for CPUs has one library for convolutions of up to `FEW_CHANNELS`, and a faster
    one for others. Two columns are one of twice the channels. A kernel of three columns
    is one of two such pairs, with zeros for a quarter of its numbers.
    """
    height, width, channels, features = kernel.shape
    if max(channels, features) > FEW_CHANNELS or width == 1:
        return _plain(x, kernel, pads)
    before, after = pads[1]
    cols = x.shape[2] + before + after - width + 1
    pairs, span = -(-cols // 2), -(-(width + 1) // 2)  # of outputs, of a kernel
    beyond = 2 * (pairs + span - 1) - x.shape[2] - before
    # `jnp.pad` in a fused loop would check the place of every number.
    ends = [jnp.zeros((*x.shape[:2], n, channels), x.dtype) for n in (before, beyond)]
    x = jnp.concatenate([ends[0], x, ends[1]], 2)
    shifted = [
        jnp.pad(kernel, ((0, 0), (j, 2 * span - width - j), (0, 0), (0, 0)))
        for j in (0, 1)
    ]
    y = _plain(
        x.reshape(*x.shape[:2], -1, 2 * channels),
        jnp.stack(shifted, 3).reshape(height, span, 2 * channels, 2 * features),
        (pads[0], (0, 0)),
    )
    return y.reshape(*y.shape[:2], 2 * pairs, features)[:, :, :cols]


def _plain(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    order = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), pads, dimension_numbers=order)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def conv(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    """A convolution without strides; its backward passes are in NHWC order too."""
    return _by_pairs(x, kernel, pads)


def _forward(x, kernel, pads):
    return _by_pairs(x, kernel, pads), (x, kernel)


def _backward(pads, residuals, dy):
    x, kernel = residuals
    # Examples and channels change places: dk[i, j] = sum x[. + i, . + j] dy[., .].
    # The barriers keep XLA from folding the transposes into the convolutions.
    x_t, dy_t, kernel_t = lax.optimization_barrier(
        (
            x.transpose(3, 1, 2, 0),
            dy.transpose(1, 2, 0, 3),
            kernel[::-1, ::-1].transpose(0, 1, 3, 2),
        )
    )
    high, wide = (
        (window - 1 - before, window - 1 - after)
        for window, (before, after) in zip(kernel.shape[:2], pads, strict=True)
    )
    dkernel = lax.optimization_barrier(_plain(x_t, dy_t, pads))
    return _by_pairs(dy, kernel_t, (high, wide)), dkernel.transpose(1, 2, 0, 3)


conv.defvjp(_forward, _backward)


def by_windows(x: jax.Array, kernel: jax.Array, *, pads: Pads) -> jax.Array:
    """Maxima of 2x2 windows of a convolution of few channels.

    Examples are the innermost axis, so that pieces of images are contiguous. The two
    rows of a window are two blocks of one matrix product, whose right factor holds the
    patch that both share. There is one such product for each column of a window, and
    the pool compares whole blocks. An odd last row or column is left out.
    """
    height, width, _, features = kernel.shape
    inside = jnp.pad(x.transpose(3, 1, 2, 0), ((0, 0), *pads, (0, 0)))
    columns = _lines(jnp.stack(_lines(inside, 1, height + 1)), 3, width + 1)
    rows, cols = columns[0].shape[2:4]  # after height + 1 and channels
    shifted = [jnp.pad(kernel, ((i, 1 - i), (0, 0), (0, 0), (0, 0))) for i in (0, 1)]
    # Rows of a window, features, width, height + 1, channels.
    blocks = jnp.stack(shifted).transpose(0, 4, 2, 1, 3)
    blocks = blocks.reshape(2 * features, -1)

    def of_column(j):
        patches = jnp.stack(columns[j : j + width]).reshape(blocks.shape[1], -1)
        return (blocks @ patches).reshape(2, features, -1)

    (a, c), (b, d) = of_column(0), of_column(1)
    maxima = largest(a, b, c, d)  # flat: one loop
    return maxima.reshape(features, rows, cols, len(x)).transpose(3, 1, 2, 0)


def winograd(x: jax.Array, kernel: jax.Array, *, pads: Pads) -> jax.Array:
    """Maxima of 2x2 windows of a 3x3 convolution, with fewer products: F(2x2, 3x3).

    The four outputs of a window take 36 products. Sixteen are enough if sums of its 4x4
    inputs, a tile, and of the kernel are multiplied instead. A layer is then 16
    products of matrices (tiles, channels) and (channels, features). In float32 the
    errors are no larger than those of a plain convolution. An infinite input makes NaN
    of its tiles.

    Inputs are added along the rows of an image first. The remaining summands are whole
    lines apart, so these loops compute no indices. They continue over the ends of
    images: the line of tiles between two images mixes both and is removed at the end.

    The maximum of a window is taken before outputs are written, and its place is kept
    in a byte for the backward pass.

    Reference: Lavin and Gray (2016), Fast Algorithms for Convolutional Neural Networks,
    section 4.1, with their B, G and A.
    """
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    x = x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
    width, features = x.shape[2] // 2 - 1, kernel.shape[3]  # tiles of a line
    blocks = len(x) // _block(x.shape)
    sums = [  # along rows: (blocks, lines of all images of a block, channels)
        [half.reshape(blocks, -1, x.shape[3]) for half in _lines(part, 1, 2)]
        for part in _of_inputs(*_lines(x, 2, 4))
    ]
    factors = _twice(_of_kernel, [list(row) for row in kernel])
    saved = jax.checkpoint_policies.save_only_these_names("place")

    @functools.partial(jax.checkpoint, prevent_cse=False, policy=saved)
    def of_block(sums, factors):
        columns = [
            _of_inputs(even[:-width], odd[:-width], even[width:], odd[width:])
            for even, odd in sums
        ]
        tiles = [list(row) for row in zip(*columns, strict=True)]
        (a, b), (c, d) = _twice(_of_products, jax.tree.map(jnp.matmul, tiles, factors))
        upper, lower = _is_larger(b, a), _is_larger(d, c)
        above, below = jnp.where(upper, b, a), jnp.where(lower, d, c)
        place = jnp.where(_is_larger(below, above), 2 + lower, upper)
        place = checkpoint_name(place.astype(jnp.uint8), "place")
        below = jnp.where(place == 2, c, d)
        return jnp.where(place == 0, a, jnp.where(place == 1, b, below))

    maxima = lax.map(lambda sums: of_block(sums, factors), sums)
    lined = jnp.pad(maxima, ((0, 0), (0, width), (0, 0)))
    return lined.reshape(len(x), -1, width, features)[:, :-1]


def _block(shape: tuple[int, ...]) -> int:
    """Returns how many examples of padded images are worked on together.

    There are at least two blocks if there are two examples: XLA does not recompute what
    a loop has written for each of its sixteen readers.
    """
    examples, height, width = shape[:3]
    most = max(1, min(TILES * 4 // (height * width), examples // 2))
    return next(number for number in range(most, 0, -1) if examples % number == 0)


def _twice(linear: Callable, grid: list[list[jax.Array]]) -> list[list[jax.Array]]:
    """Applies a `linear` map of lines to the columns and then the rows of a grid."""
    columns = [linear(*column) for column in zip(*grid, strict=True)]
    return [list(linear(*row)) for row in zip(*columns, strict=True)]


def _of_inputs(a, b, c, d):
    return a - c, b + c, c - b, b - d


def _of_kernel(a, b, c):
    ends, middle = (a + c) / 2, b / 2
    return a, ends + middle, ends - middle, c


def _of_products(a, b, c, d):
    return a + b + c, b - c - d


def _lines(x: jax.Array, axis: int, size: int) -> list[jax.Array]:
    """Returns strided slices of an axis: x[k::2] for k < size, of the same length.

    Even and odd lines are separated first, and one axis at a time. The adjoint then
    adds arrays without gaps. With gaps, XLA would make one loop of everything, which
    checks the place of every number.
    """
    count = (x.shape[axis] - size) // 2 + 1
    halves = [lax.slice_in_dim(x, odd, None, 2, axis) for odd in (0, 1)]
    return [
        lax.slice_in_dim(halves[i % 2], i // 2, i // 2 + count, axis=axis)
        for i in range(size)
    ]


def largest(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> jax.Array:
    """Maxima, NaN included, whose gradient goes to the first of equal numbers."""

    def larger(a, b):
        return jnp.where(_is_larger(b, a), b, a)

    return larger(larger(a, b), larger(c, d))


def _is_larger(b: jax.Array, a: jax.Array) -> jax.Array:
    return (b > a) | jnp.isnan(b)
