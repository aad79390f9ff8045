"""Forms of a convolution, and of its maxima in 2x2 windows, that agree up to rounding.

Which of them is fast, and where, is said in `convolution.py`.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

Pads = tuple[tuple[int, int], tuple[int, int]]  # before and after, in both directions
NO_PADS: Pads = ((0, 0), (0, 0))
Four = tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]  # 2x2 places
ORDER = ("NHWC", "HWIO", "NHWC")
FEW_CHANNELS = 16  # in and out, up to which XLA's convolutions are the slower ones
BANDED_OUTPUTS = 32  # about how wide a row of `banded`'s product is: best on LeNet's


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def plain(
    x: jax.Array, kernel: jax.Array, pads: Pads = NO_PADS, strides: int = 1
) -> jax.Array:
    """Convolves as jax has it.

    Its gradients are jax's too, but written here: those of jax name their sharding,
    and with one jax does not batch a convolution of clients again, over the points of
    a sweep, where these share the images. So what goes forwards is the gradient alone,
    and not the layer (`jax.jvp`).

    Args:
      x: images in NHWC order.
      kernel: a kernel in HWIO order.
      pads: zeros (before, after) the height and the width.
      strides: steps of 1, 2, ... in both directions.
    """
    return of_jax(x, kernel, pads, strides)


def of_jax(
    x: jax.Array, kernel: jax.Array, pads: Pads = NO_PADS, strides: int = 1
) -> jax.Array:
    """Convolves as `plain` does, for what has a gradient of its own.

    The arguments `x`, `kernel`, `pads` and `strides` are those of `plain`. It can be
    differentiated forwards, as a product with a Hessian does it with a gradient.
    """
    return lax.conv_general_dilated(
        x, kernel, (strides, strides), pads, dimension_numbers=ORDER
    )


def gradients_of_jax(
    x: jax.Array,
    kernel: jax.Array,
    dy: jax.Array,
    pads: Pads = NO_PADS,
    strides: int = 1,
) -> tuple[jax.Array, jax.Array]:
    """Returns the gradients of `plain` by images and kernel.

    The arguments `x`, `kernel`, `pads` and `strides` are those of `plain`, and `dy`
    holds the gradients by its output.
    """
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
    )
    dkernel = lax.conv_general_dilated(
        x,
        dy,
        (1, 1),
        of_kernel,
        rhs_dilation=apart,
        dimension_numbers=("CHWN", "IHWO", "HWNC"),
    )
    return dx, dkernel


def _plain_forward(x, kernel, pads, strides):
    return of_jax(x, kernel, pads, strides), (x, kernel)


def _plain_backward(pads, strides, residuals, dy):
    x, kernel = residuals
    return gradients_of_jax(x, kernel, dy, pads, strides)


plain.defvjp(_plain_forward, _plain_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def canonical(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    """Convolves without strides, with backward passes written in NHWC and HWIO.

    Only they depend on the platform, and so the choice is made in there: what chooses
    between platforms cannot be differentiated around a custom gradient.

    Args:
      x: images in NHWC order.
      kernel: a kernel in HWIO order.
      pads: zeros (before, after) the height and the width.
    """
    return _canonical_forward(x, kernel, pads)[0]


def _canonical_forward(x, kernel, pads):
    def elsewhere(x, kernel):
        return of_jax(x, kernel, pads)

    on_cpu = functools.partial(_plain_on_cpu, pads=pads)
    y = lax.platform_dependent(x, kernel, cpu=on_cpu, default=elsewhere)
    return y, (x, kernel)


def _canonical_backward(pads, residuals, dy):
    def on_cpu(x, kernel, dy):
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
        dkernel = lax.optimization_barrier(of_jax(x_t, dy_t, pads))
        dx = _plain_on_cpu(dy, kernel_t, (high, wide))
        return dx, dkernel.transpose(1, 2, 0, 3)

    def elsewhere(x, kernel, dy):
        return gradients_of_jax(x, kernel, dy, pads)

    return lax.platform_dependent(*residuals, dy, cpu=on_cpu, default=elsewhere)


canonical.defvjp(_canonical_forward, _canonical_backward)


def _plain_on_cpu(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    """Convolves as `plain` does, few channels as pairs of neighbours.

    XLA for CPUs has one library for convolutions of up to `FEW_CHANNELS`, and a faster
    one for others. Two columns side by side are one of twice the channels. A kernel
    of three columns has two such, of whose numbers a quarter are zeros.

    Args:
      x: images in NHWC order.
      kernel: a kernel in HWIO order.
      pads: zeros (before, after) the height and the width.
    """
    height, width, channels, features = kernel.shape
    if max(channels, features) > FEW_CHANNELS or width == 1:
        return of_jax(x, kernel, pads)
    before, after = pads[1]
    cols = x.shape[2] + before + after - width + 1
    pairs, span = -(-cols // 2), -(-(width + 1) // 2)  # of outputs, of a kernel
    beyond = 2 * (pairs + span - 1) - x.shape[2] - before
    # Not `jnp.pad`: in a fused loop that asks of every number where it lies.
    ends = [jnp.zeros((*x.shape[:2], n, channels), x.dtype) for n in (before, beyond)]
    x = jnp.concatenate([ends[0], x, ends[1]], 2)
    shifted = [
        jnp.pad(kernel, ((0, 0), (j, 2 * span - width - j), (0, 0), (0, 0)))
        for j in (0, 1)
    ]
    y = of_jax(
        x.reshape(*x.shape[:2], -1, 2 * channels),
        jnp.stack(shifted, 3).reshape(height, span, 2 * channels, 2 * features),
        (pads[0], (0, 0)),
    )
    return y.reshape(*y.shape[:2], 2 * pairs, features)[:, :, :cols]


def banded(x: jax.Array, kernel: jax.Array, strides: int = 1) -> jax.Array:
    """Convolves without padding, by one matrix product for several outputs at a time.

    Patches times kernel copies every input once for each place of the kernel, and
    the product is narrow. Here a row of the left factor is the patch that several
    neighbouring outputs share; the right factor holds the kernel once for each of
    them, shifted, so that it is a band matrix. That multiplies by more zeros and
    moves less memory, which is what a layer of few channels is short of.

    Args:
      x: images in NHWC order, already padded.
      kernel: a kernel in HWIO order.
      strides: steps of 1, 2, ... in both directions.
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


def batch_minor(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    """Returns maxima of 2x2 windows of a convolution, with examples innermost.

    One matrix product has the four places of a window as four blocks of rows, so that
    the pool compares whole blocks. Its right factor has, for each window, the patch
    that its places share: what is cut out of images stays contiguous where there are
    few channels and some examples. An odd last row or column is left out.

    Args:
      x: images in NHWC order.
      kernel: a kernel in HWIO order.
      pads: zeros (before, after) the height and the width.
    """
    height, width, channels, features = kernel.shape
    inside = jnp.pad(x.transpose(3, 1, 2, 0), ((0, 0), *pads, (0, 0)))
    patches = _patches(inside, (height + 1, width + 1))
    places = [(i, j) for i in (0, 1) for j in (0, 1)]
    blocks = jnp.stack(
        [jnp.pad(kernel, ((i, 1 - i), (j, 1 - j), (0, 0), (0, 0))) for i, j in places]
    ).transpose(0, 4, 2, 1, 3)  # places, features, width + 1, height + 1, channels
    shared = (height + 1) * (width + 1) * channels
    y = blocks.reshape(-1, shared) @ patches.reshape(shared, -1)
    rows, cols = patches.shape[-3:-1]
    a, b, c, d = y.reshape(4, features, -1)  # flat: XLA makes one loop of the pool
    best = _largest(((a, b), (c, d)))
    return best.reshape(features, rows, cols, len(x)).transpose(3, 1, 2, 0)


def _patches(x: jax.Array, sizes: tuple[int, int]) -> jax.Array:
    """Returns what lies at each place of patches two apart, by column and row first.

    Args:
      x: images [channels, height, width, examples].
      sizes: height and width of a patch.
    """
    return jnp.stack(lines(jnp.stack(lines(x, 1, sizes[0])), 3, sizes[1]))


def lines(x: jax.Array, axis: int, size: int) -> list[jax.Array]:
    """Returns the first lines of windows two apart, the second ones, up to the last.

    Even lines are cut apart from odd ones, and all of one axis at a time. The adjoint
    then adds up what lies side by side; with gaps between their numbers, XLA would
    make one loop of all, with a question for each.

    Args:
      x: an array of any shape.
      axis: the axis of the lines.
      size: the number of lines of a window.
    """
    count = (x.shape[axis] - size) // 2 + 1
    halves = [lax.slice_in_dim(x, odd, None, 2, axis) for odd in (0, 1)]
    return [
        lax.slice_in_dim(halves[i % 2], i // 2, i // 2 + count, axis=axis)
        for i in range(size)
    ]


def max_pool(x: jax.Array) -> jax.Array:
    """Returns the maxima of 2x2 windows of `x` in NHWC order.

    An odd last row or column is left out. Written with comparisons: the derivative of
    `lax.reduce_window` is a scatter, with which a step of LeNet takes 1.7 times as
    long. The gradient goes to the first of equal numbers, as there, and NaN is passed
    on.
    """
    require_windows(*x.shape[1:3])
    return _largest(windows(x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]))


def require_windows(height: int, width: int) -> None:
    """Raises unless images of a `height` and a `width` have a window of 2x2."""
    if min(height, width) < 2:
        msg = f"Expected images of 2x2 at least to pool, got {height}x{width}."
        raise ValueError(msg)


def windows(x: jax.Array) -> Four:
    """Returns the four places of 2x2 windows of images `x`, whose sizes are even."""
    examples, height, width, channels = x.shape
    x = x.reshape(examples, height // 2, 2, width // 2, 2, channels)
    return (x[:, :, 0, :, 0], x[:, :, 0, :, 1]), (x[:, :, 1, :, 0], x[:, :, 1, :, 1])


def spread(four: Four) -> jax.Array:
    """Returns images of which these are the places: the inverse of `windows`.

    Args:
      four: arrays in NHWC order, by their place in a window.
    """
    y = jnp.stack([jnp.stack(row, 3) for row in four], 2)
    examples, rows, _, cols, _, features = y.shape
    return y.reshape(examples, 2 * rows, 2 * cols, features)


def choice(four: Four) -> tuple[jax.Array, jax.Array]:
    """Returns the maxima of windows, and which place of four each is from.

    Args:
      four: arrays by their place in a window.
    """
    (a, b), (c, d) = four
    above, below = jnp.maximum(a, b), jnp.maximum(c, d)
    place = jnp.where(below > above, jnp.where(d > c, 3, 2), jnp.where(b > a, 1, 0))
    return jnp.maximum(above, below), place.astype(jnp.uint8)


def given_to(places: jax.Array, dy: jax.Array) -> Four:
    """Returns the gradients of windows, of which one place has all.

    Args:
      places: the places, as `choice` has them.
      dy: the gradients by the maxima.
    """
    a, b, c, d = (jnp.where(places == number, dy, 0) for number in range(4))
    return (a, b), (c, d)


def _largest(four: Four) -> jax.Array:
    """Returns the maxima of windows, whose gradient goes to the first of equal ones.

    Args:
      four: arrays by their place in a window.
    """
    (a, b), (c, d) = four
    return first_larger(first_larger(a, b), first_larger(c, d))


def first_larger(a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns maxima, whose gradient goes to `a` where both are equal.

    Args:
      a: an array of any shape.
      b: an array of its shape.
    """
    return jnp.where((b > a) | jnp.isnan(b), b, a)
