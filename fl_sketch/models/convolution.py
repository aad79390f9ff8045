"""Convolutions that are fast inside loops on CPUs too, as layers and as functions.

On CPUs and in float32 they compute the forms of `models.cpu`, elsewhere the convolution
of XLA. Both agree up to rounding, in values and in gradients, where numbers are finite.
On CPUs a number that is not finite may reach neighbours in its own image that a plain
convolution spares.

The kernels of clients differ, and under `vmap` XLA convolves by groups. On CPUs that
takes longer than a loop over clients.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core import validate
from fl_sketch.core.platforms import by_platform
from fl_sketch.models import cpu, gpu
from fl_sketch.models.pooling import Pads, max_pool, require_windows

PADDINGS = ("SAME", "VALID")


class Conv(nn.Module):
    """A convolution layer with the parameters of `flax.linen.Conv`.

    Attributes:
      strides: steps of 1, 2, ... in both directions.
      padding: "SAME" or "VALID".
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

    That is the pool of its relu. The attributes are those of `Conv`; strides are 1.
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
      x: images.
      kernel: height, width, input channels as the images have, output channels.
      strides: steps of 1, 2, ... in both directions.
      padding: "SAME" or "VALID".

    Raises:
      ValueError: for shapes that do not fit together.
    """
    validate.at_least_one(strides=strides)
    pads = _checked(x, kernel, strides, padding)
    return _by_platform(x, kernel, pads, strides, pool=False)


def convolve_and_pool(
    x: jax.Array, kernel: jax.Array, *, padding: str = "SAME"
) -> jax.Array:
    """Returns the maxima of 2x2 windows of `convolve`, without an odd row or column.

    A bias may be added to the maxima instead of the outputs, and a function that never
    decreases, as relu, may be applied to them.

    Args:
      x: images.
      kernel: as `convolve` has it.
      padding: "SAME" or "VALID".

    Raises:
      ValueError: for shapes that do not fit together, or too few outputs to pool.
    """
    pads = _checked(x, kernel, 1, padding)
    rows, cols = (
        size + sum(pad) - window + 1
        for size, pad, window in zip(x.shape[1:3], pads, kernel.shape[:2], strict=True)
    )
    require_windows(rows, cols)
    return _by_platform(x, kernel, pads, 1, pool=True)


def _by_platform(x, kernel, pads: Pads, strides: int, *, pool: bool) -> jax.Array:
    def plain(x, kernel):
        y = _plain(x, kernel, pads, strides)
        return max_pool(y) if pool else y

    if x.dtype != jnp.float32:  # the forms of CPUs are less exact in other types
        return plain(x, kernel)
    fast = functools.partial(cpu.convolve, pads=pads, strides=strides, pool=pool)
    on_gpu = functools.partial(gpu.convolve, pads=pads, strides=strides, pool=pool)
    return by_platform(x, kernel, cpu=fast, cuda=on_gpu, default=plain)


def _convolved(x: jax.Array, kernel: jax.Array, pads: Pads, strides: int) -> jax.Array:
    order = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (strides, strides), pads, dimension_numbers=order
    )


# The gradients of jax name their sharding. With one, jax cannot batch a convolution
# twice, over the clients and over the points of a sweep, where points share the images.
# The gradients below do not. `jax.jvp` works for them, not for the layer itself.
_plain = jax.custom_vjp(_convolved, nondiff_argnums=(2, 3))


def _forward(x, kernel, pads, strides):
    return _convolved(x, kernel, pads, strides), (x, kernel)


def _backward(pads, strides, residuals, dy):
    x, kernel = residuals
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


_plain.defvjp(_forward, _backward)


def _checked(x, kernel, strides: int, padding: str) -> Pads:
    """Returns the zeros around images, if the shapes of a layer fit together."""
    validate.one_of(PADDINGS, padding=padding)
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[-1] != kernel.shape[2]:
        msg = f"Expected NHWC images and an HWIO kernel, got {x.shape}, {kernel.shape}."
        raise ValueError(msg)
    image, window = x.shape[1:3], kernel.shape[:2]
    if padding == "VALID" and min(image[0] - window[0], image[1] - window[1]) < 0:
        need, got = "x".join(map(str, window)), "x".join(map(str, image))
        msg = f"Expected images of {need} at least, as the kernel, got {got}."
        raise ValueError(msg)
    high, wide = lax.padtype_to_pads(image, window, (strides, strides), padding)
    return high, wide
