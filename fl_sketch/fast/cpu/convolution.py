"""Convolutions for CPUs: which form is the fastest, and the forms without a pool.

From 16 input channels on a layer is `canonical`. With fewer channels that form
multiplies too little at a time, and `banded` is faster; with more, `banded` multiplies
too many zeros. A layer with a pool has forms of its own where their products are long:
`winograd` where it is wide, and with few channels `toom_cook` or, below its number of
channels, `batch_minor`. `python -m launch.benchmark --suite=engine` measures rounds of
a CNN (W1), of LeNet (W2) and of a ResNet (W5).
"""

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.fast.cpu import toom_cook, winograd
from fl_sketch.fast.cpu.pooled import batch_minor
from fl_sketch.fast.plain import product
from fl_sketch.fast.pooling import Pads, max_pool

MANY_CHANNELS = 16  # input channels from which products of one place are wide
MANY_EXAMPLES = 8  # from which examples may be the innermost axis
FEW_CHANNELS = 16  # in and out, up to which XLA uses its slower convolutions
BANDED_OUTPUTS = 32  # about the width of a row of the product of `banded`


def convolve(
    x: jax.Array, kernel: jax.Array, pads: Pads, strides: int = 1, *, pool: bool = False
) -> jax.Array:
    """Returns a convolution, as `fast.forms.convolve` does: fastest on CPUs."""
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    many = x.shape[-1] >= MANY_CHANNELS
    if pool and winograd.is_worth_it(padded.shape, kernel.shape):
        return winograd.pooled(padded, kernel)
    if pool and not many and len(x) >= MANY_EXAMPLES:
        fewer_products = toom_cook.is_worth_it(kernel.shape)
        return (toom_cook.pooled if fewer_products else batch_minor)(x, kernel, pads)
    if many and strides == 1:
        y = canonical(x, kernel, pads)
    else:
        y = banded(padded, kernel, strides)
    return max_pool(y) if pool else y


def _by_pairs(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    """Convolves; few channels as pairs of neighbouring columns.

    XLA for CPUs has one library for convolutions of up to `FEW_CHANNELS`, and a faster
    one for others. Two columns are one of twice the channels. A kernel of three columns
    is one of two such pairs, with zeros for a quarter of its numbers.
    """
    height, width, channels, features = kernel.shape
    if max(channels, features) > FEW_CHANNELS or width == 1:
        return product(x, kernel, pads, 1)
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
    y = product(
        x.reshape(*x.shape[:2], -1, 2 * channels),
        jnp.stack(shifted, 3).reshape(height, span, 2 * channels, 2 * features),
        (pads[0], (0, 0)),
        1,
    )
    return y.reshape(*y.shape[:2], 2 * pairs, features)[:, :, :cols]


# A convolution without strides, whose backward passes are in NHWC and HWIO order too.
canonical = jax.custom_vjp(_by_pairs, nondiff_argnums=(2,))


def _canonical_forward(x, kernel, pads):
    return _by_pairs(x, kernel, pads), (x, kernel)


def _canonical_backward(pads, residuals, dy):
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
    dkernel = lax.optimization_barrier(product(x_t, dy_t, pads, 1))
    return _by_pairs(dy, kernel_t, (high, wide)), dkernel.transpose(1, 2, 0, 3)


canonical.defvjp(_canonical_forward, _canonical_backward)


def banded(x: jax.Array, kernel: jax.Array, strides: int = 1) -> jax.Array:
    """Convolves padded images by one matrix product for several outputs at a time.

    The usual product of patches and kernel is narrow, and copies every input once for
    each place of the kernel. Here a row of the left factor is the patch that several
    neighbouring outputs share. The right factor is a band matrix: it holds the kernel
    once for each of these outputs, shifted. That multiplies more zeros and moves less
    memory, which is what limits a layer of few channels.
    """
    height, width, channels, features = kernel.shape
    rows = (x.shape[1] - height) // strides + 1
    cols = (x.shape[2] - width) // strides + 1
    columns = _columns(cols, width, features)
    tiles = -(-cols // columns)
    step, patch = columns * strides, (columns - 1) * strides + width
    beyond = max((tiles - 1) * step + patch - x.shape[2], 0)
    x = jnp.pad(x, ((0, 0), (0, 0), (0, beyond), (0, 0)))

    lines = [x[:, i : i + strides * (rows - 1) + 1 : strides] for i in range(height)]
    patches = jnp.stack(
        [
            jnp.stack([line[:, :, t * step : t * step + patch] for line in lines], 2)
            for t in range(tiles)
        ],
        2,
    )  # examples, rows, tiles, height, patch, channels
    band = jnp.stack(
        [
            jnp.pad(kernel, ((0, 0), (j, patch - width - j), (0, 0), (0, 0)))
            for j in range(0, step, strides)
        ],
        3,
    )  # height, patch, channels, columns, features
    y = patches.reshape(-1, height * patch * channels) @ band.reshape(
        -1, columns * features
    )
    return y.reshape(len(x), rows, tiles * columns, features)[:, :, :cols]


def _columns(cols: int, width: int, features: int) -> int:
    """Returns how many neighbouring outputs to compute at a time."""
    most = min(cols, max(2, BANDED_OUTPUTS // features)) if width > 1 else 1
    whole = [number for number in range(2, most + 1) if cols % number == 0]
    return max(whole, default=most)
