"""Convolutions and pools that stay fast inside a loop: the one place that knows how.

XLA for CPUs brings convolutions into the order its kernels want only where a program
begins, not inside `lax.scan` or `lax.map`. Federated learning is all loops: there a
kernel's gradient, as JAX writes it, is tens of times slower. So on CPUs there are
other forms; accelerators get the plain one. Nobody else needs to know: all agree up to
rounding, in values and in gradients, where numbers are finite. What is not may reach
neighbours that a plain convolution spares, within its own image.

A layer by itself is `canonical`, with backward passes in that order, from 16 input
channels on, by pairs of columns if there are no more of them. Below them it is
`banded`, one matrix product of the whole: with few channels `canonical` has too little
to multiply at a time, with many `banded` too many zeros.

A layer with a pool is Winograd's where it is wide, and elsewhere Toom's and Cook's, or
`batch_minor` where there are fewer than four channels. What whole rounds take is W1
(the CNN), W2 (LeNet) and W5 (a ResNet) of `python -m launch.benchmark --suite=engine`.

Under vmap the kernels of clients differ, and XLA's grouped convolutions take longer
than a loop: on CPUs, loop.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core import validate
from fl_sketch.models import forms, toom_cook
from fl_sketch.models.forms import Pads
from fl_sketch.models.winograd import is_worth_it, pooled_winograd

PADDINGS = ("SAME", "VALID")
MANY_CHANNELS = 16  # input channels from which products of one place are wide enough
WIDE_LAYER = 2048  # input times output channels from which fewer products pay
SOME_CHANNELS = 4  # input channels from which fewer products of few channels pay
MANY_EXAMPLES = 8  # from which they may be what is innermost


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
        kernel, bias = self.parameters_for(x)
        y = convolve(x, kernel, strides=self.strides, padding=self.padding)
        return y + bias if self.use_bias else y

    def parameters_for(self, x: jax.Array) -> tuple[jax.Array, jax.Array | float]:
        """Returns the kernel for images like `x`, and the bias, or zero."""
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape)
        if not self.use_bias:
            return kernel, 0.0
        return kernel, self.param("bias", self.bias_init, (self.features,))


class PooledConv(Conv):
    """The relu of a `Conv`'s maxima in 2x2 windows, with the same parameters.

    That is the pool of its relu, in which both come before anything is written. The
    attributes are those of `Conv`, without strides.
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the layer's output for images in NHWC order."""
        if self.strides != 1:
            msg = f"Expected strides=1 of a pooled layer, got strides={self.strides!r}."
            raise ValueError(msg)
        kernel, bias = self.parameters_for(x)
        return nn.relu(convolve_and_pool(x, kernel, padding=self.padding) + bias)


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
    pads = _checked(x, kernel, strides, padding)
    if x.dtype != jnp.float32:  # other forms are as exact in float32 alone
        return forms.plain(x, kernel, pads, strides)
    if strides == 1 and x.shape[-1] >= MANY_CHANNELS:
        return forms.canonical(x, kernel, pads)
    return lax.platform_dependent(
        x,
        kernel,
        cpu=lambda x, k: forms.banded(_padded(x, pads), k, strides),
        default=lambda x, k: forms.plain(x, k, pads, strides),
    )


def convolve_and_pool(
    x: jax.Array, kernel: jax.Array, *, padding: str = "SAME"
) -> jax.Array:
    """Returns the maxima of 2x2 windows of `convolve`, without an odd row or column.

    A bias may be added to the maxima, and what never falls may be taken of them, as of
    the outputs themselves.

    Args:
      x: the images.
      kernel: the kernel, as `convolve` has it.
      padding: the kind of padding, "SAME" or "VALID".

    Raises:
      ValueError: for shapes that do not fit together, or too few outputs to pool.
    """
    pads = _checked(x, kernel, 1, padding)
    rows, cols = (n + sum(pad) for n, pad in zip(x.shape[1:3], pads, strict=True))
    forms.require_windows(rows - kernel.shape[0] + 1, cols - kernel.shape[1] + 1)
    if x.dtype != jnp.float32:
        return forms.max_pool(forms.plain(x, kernel, pads))
    height, width, channels, features = kernel.shape
    wide = (height, width) == (3, 3) and channels * features >= WIDE_LAYER
    if wide and is_worth_it((len(x), rows, cols, channels)):
        return pooled_winograd(_padded(x, pads), kernel)
    if x.shape[-1] >= MANY_CHANNELS or len(x) < MANY_EXAMPLES:
        return forms.max_pool(convolve(x, kernel, padding=padding))
    few = channels < SOME_CHANNELS or not 2 <= width <= len(toom_cook.POINTS)
    pooled = forms.batch_minor if few else toom_cook.pooled_toom_cook
    return lax.platform_dependent(
        x,
        kernel,
        cpu=lambda x, k: pooled(x, k, pads),
        default=lambda x, k: forms.max_pool(forms.plain(x, k, pads)),
    )


def _padded(x: jax.Array, pads: Pads) -> jax.Array:
    return jnp.pad(x, ((0, 0), *pads, (0, 0)))


def _checked(x, kernel, strides: int, padding: str) -> Pads:
    """Returns the padding of a layer, if its shapes fit together."""
    validate.one_of(PADDINGS, padding=padding)
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[-1] != kernel.shape[2]:
        msg = f"Expected NHWC images and an HWIO kernel, got {x.shape}, {kernel.shape}."
        raise ValueError(msg)
    return _pads(x.shape[1:3], kernel.shape[:2], strides, padding)


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
