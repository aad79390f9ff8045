"""Convolutions and pools that stay fast inside a loop: the one place that knows how.

XLA for CPUs brings convolutions into the order its kernels want only where a program
begins, not inside `lax.scan` or `lax.map`. Federated learning is all loops: there a
kernel's gradient, as JAX writes it, is tens of times slower. So on CPUs `convolve`
writes its backward passes in that order (`canonical`) or makes one matrix product of
the whole (`banded`); accelerators get the plain form. Nobody else needs to know: the
three agree up to rounding, in values and in gradients.

Times are milliseconds for five steps of SGD of one client inside `lax.map` over
clients, pool and dense layers included. They are medians of 7 to 9 interleaved runs on
one core of an AMD EPYC with AVX-512, jax 0.10.2 (for ResNet-20 the best of 3)::

                          plain   canonical   patches   banded   chosen   and vmapped
    LeNet, batch 32          88        15.4      15.1      6.5      6.4      7.6
    CNN, batch 10          1102        50.3      60.1     58.5     48.0    106
    ResNet-20, batch 10    3116           -         -        -      134        -

"Patches" is patches times kernel, with JAX's gradients; "chosen" takes `canonical`
from 16 input channels on and `banded` below. One layer alone, both gradients, five
steps, "SAME", batch 10 (the least of 5 interleaved runs)::

                         14x14, 5x5 to 16     32x32, 3x3    16x16, 3x3    30x30, 3x3
    channels             6     12     16   8 to 8  16 to 16   32 to 32     32 to 64
    canonical         2.87   3.90   4.26     5.06      8.61       3.79         30.3
    banded            1.53   3.10   4.65     4.54      19.7       8.55         62.3

Under vmap the kernels of clients differ, and XLA's grouped convolutions take twice the
time of a loop: on CPUs, loop.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch import validate

Pads = tuple[tuple[int, int], tuple[int, int]]  # before and after, in both directions
PADDINGS = ("SAME", "VALID")
ORDER = ("NHWC", "HWIO", "NHWC")
CANONICAL_CHANNELS = 16  # input channels from which `canonical` is faster, see above
BANDED_OUTPUTS = 32  # about how wide a row of `banded`'s product is: best on LeNet's


class Conv(nn.Module):
    """A convolution layer with the parameters of `flax.linen.Conv`, same shapes.

    Attributes:
      features: the number of output channels.
      kernel_size: height and width of the kernel.
      strides: steps of 1, 2, ... in both directions.
      padding: the kind of padding, "SAME" or "VALID".
      use_bias: whether a bias is added.
      kernel_init: an initializer of the kernel.
      bias_init: an initializer of the bias.
    """

    features: int
    kernel_size: tuple[int, int] = (3, 3)
    strides: int = 1
    padding: str = "SAME"
    use_bias: bool = True
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the layer's output for images in NHWC order."""
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape)
        y = convolve(x, kernel, strides=self.strides, padding=self.padding)
        if not self.use_bias:
            return y
        return y + self.param("bias", self.bias_init, (self.features,))


def convolve(
    x: jax.Array, kernel: jax.Array, *, strides: int = 1, padding: str = "SAME"
) -> jax.Array:
    """Returns the convolution of images (NHWC) with a kernel (HWIO), in NHWC order.

    The padding is that of `lax.conv_general_dilated`: for "SAME" the output has
    ceil(size / strides) places, and an odd row or column of zeros goes to the end.

    Args:
      x: the images.
      kernel: the kernel: height, width, input channels as the images have, output
        channels.
      strides: steps of 1, 2, ... in both directions.
      padding: the kind of padding, "SAME" or "VALID".

    Raises:
      ValueError: for shapes that do not fit together.
    """
    validate.at_least_one(strides=strides)
    validate.one_of(PADDINGS, padding=padding)
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[-1] != kernel.shape[2]:
        msg = f"Expected NHWC images and an HWIO kernel, got {x.shape}, {kernel.shape}."
        raise ValueError(msg)
    pads = _pads(x.shape[1:3], kernel.shape[:2], strides, padding)

    if strides == 1 and x.shape[-1] >= CANONICAL_CHANNELS:
        return canonical(x, kernel, pads)
    return lax.platform_dependent(
        x,
        kernel,
        cpu=lambda x, k: banded(jnp.pad(x, ((0, 0), *pads, (0, 0))), k, strides),
        default=lambda x, k: _plain(x, k, pads, strides),
    )


def _plain(x, kernel, pads, strides=1) -> jax.Array:
    return lax.conv_general_dilated(
        x, kernel, (strides, strides), pads, dimension_numbers=ORDER
    )


def _pads(image, kernel, strides, padding) -> Pads:
    """Returns (before, after) for height and width."""
    if padding == "VALID":
        if min(image[0] - kernel[0], image[1] - kernel[1]) < 0:
            need, got = "x".join(map(str, kernel)), "x".join(map(str, image))
            msg = f"Expected images of {need} at least, as the kernel, got {got}."
            raise ValueError(msg)
        return (0, 0), (0, 0)
    high, wide = (
        max((-(-size // strides) - 1) * strides + window - size, 0)
        for size, window in zip(image, kernel, strict=True)
    )
    return (high // 2, high - high // 2), (wide // 2, wide - wide // 2)


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
    return _plain(x, kernel, pads)


def _canonical_forward(x, kernel, pads):
    return _plain(x, kernel, pads), (x, kernel)


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
        rest = tuple(
            (window - 1 - before, window - 1 - after)
            for window, (before, after) in zip(kernel.shape[:2], pads, strict=True)
        )
        dkernel = lax.optimization_barrier(_plain(x_t, dy_t, pads))
        return _plain(dy, kernel_t, rest), dkernel.transpose(1, 2, 0, 3)

    def elsewhere(x, kernel, dy):
        return jax.vjp(lambda x, k: _plain(x, k, pads), x, kernel)[1](dy)

    return lax.platform_dependent(*residuals, dy, cpu=on_cpu, default=elsewhere)


canonical.defvjp(_canonical_forward, _canonical_backward)


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


def max_pool(x: jax.Array) -> jax.Array:
    """Returns the maxima of 2x2 windows of `x` in NHWC order.

    An odd last row or column is left out. Written with comparisons: the derivative of
    `lax.reduce_window` is a scatter, with which the rows "chosen" above take 10.9 and
    65.7 ms. The gradient goes to the first of equal numbers, as there, and NaN is
    passed on.
    """
    examples, height, width, channels = x.shape
    if min(height, width) < 2:
        msg = f"Expected images of 2x2 at least to pool, got {height}x{width}."
        raise ValueError(msg)
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    x = x.reshape(examples, height // 2, 2, width // 2, 2, channels)
    top = _first_larger(x[:, :, 0, :, 0], x[:, :, 0, :, 1])
    bottom = _first_larger(x[:, :, 1, :, 0], x[:, :, 1, :, 1])
    return _first_larger(top, bottom)


def _first_larger(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where((b > a) | jnp.isnan(b), b, a)
