"""Convolutions for GPUs whose kernels differ between clients.

Under `vmap` XLA makes a grouped convolution of those, which cuDNN computes slowly. Here
a convolution is a product of patches and kernel, and so is each of its derivatives. A
program reads the patches of its outputs from the image: they are never written.
Products are in the precision of `jax.default_matmul_precision`, TF32 by default.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core.trees import varying_like
from fl_sketch.fast.pooling import Pads, max_pool

PLACES = 128  # outputs of a program
TAPS = 32  # numbers of a patch that a program multiplies at a time
WIDEST = 64  # output channels of a program
NARROWEST = 16  # rows and columns of a product
SHARE = 2048  # outputs that a program of the kernel's gradient adds up


class Shapes(NamedTuple):
    """The sizes of a convolution of padded images.

    Attributes:
      image: examples, height, width and channels.
      kernel: height, width, input channels and output channels.
      interpret: whether to run the programs without a GPU, slowly, to test them.
    """

    image: tuple[int, int, int, int]
    kernel: tuple[int, int, int, int]
    strides: int
    interpret: bool

    @property
    def out(self) -> tuple[int, int, int, int]:
        """Examples, height, width and channels of the output."""
        rows, cols = (
            (self.image[axis + 1] - self.kernel[axis]) // self.strides + 1
            for axis in (0, 1)
        )
        return self.image[0], rows, cols, self.kernel[3]

    @property
    def places(self) -> int:
        """The number of outputs of a channel."""
        return self.out[0] * self.out[1] * self.out[2]

    @property
    def taps(self) -> int:
        """The number of numbers of a patch."""
        return self.kernel[0] * self.kernel[1] * self.kernel[2]

    def first(self, place: jax.Array) -> jax.Array:
        """Returns where in the flat images the patches of some places begin."""
        _, rows, cols, _ = self.out
        _, height, width, channels = self.image
        example, inside = place // (rows * cols), place % (rows * cols)
        row, col = inside // cols, inside % cols
        line = example * height + row * self.strides
        return (line * width + col * self.strides) * channels

    def beyond(self, tap: jax.Array) -> jax.Array:
        """Returns how far behind the begin of a patch some of its numbers are."""
        _, wide, channels, _ = self.kernel
        line, within = tap // (wide * channels), tap % (wide * channels)
        return line * (self.image[2] * channels) + within


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    pads: Pads,
    strides: int = 1,
    *,
    pool: bool = False,
    interpret: bool = False,
) -> jax.Array:
    """Returns a convolution in NHWC order.

    Args:
      x: images in NHWC order.
      kernel: a kernel in HWIO order.
      pads: zeros (before, after) the height and the width.
      strides: steps in both directions.
      pool: whether to return the maxima of 2x2 windows, without an odd last row or
        column.
      interpret: whether to run the programs without a GPU, slowly, to test them.
    """
    y: Any = _convolved(pads, strides, interpret, x, kernel)
    return max_pool(y) if pool else y


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _convolved(pads: Pads, strides: int, interpret: bool, x, kernel) -> jax.Array:
    return _products(jnp.pad(x, ((0, 0), *pads, (0, 0))), kernel, strides, interpret)


def _forward(pads, strides, interpret, x, kernel):
    return _convolved(pads, strides, interpret, x, kernel), (x, kernel)


def _backward(pads, strides, interpret, residuals, dy):
    x, kernel = residuals
    ends = []
    for axis, (before, _) in enumerate(pads):
        size, window = x.shape[axis + 1], kernel.shape[axis]
        span = strides * (dy.shape[axis + 1] - 1) + 1
        ends.append((window - 1 - before, size + before - span, strides - 1))
    apart = lax.pad(dy, jnp.zeros((), dy.dtype), [(0, 0, 0), *ends, (0, 0, 0)])
    turned = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    dx = _products(apart, turned, 1, interpret)
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    return dx, _gradient(padded, dy, kernel.shape, strides, interpret)


_convolved.defvjp(_forward, _backward)


def _products(x, kernel, strides: int, interpret: bool) -> jax.Array:
    """Returns the convolution of padded images: patches times kernel."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    shapes = Shapes(x.shape, kernel.shape, strides, interpret)
    features = kernel.shape[-1]
    wide = _power(features)

    def program(x_ref, kernel_ref, out_ref):
        place = pl.program_id(0) * PLACES + lax.iota(jnp.int32, PLACES)
        feature = pl.program_id(1) * wide + lax.iota(jnp.int32, wide)
        first = shapes.first(place)

        def step(number, total):
            tap = number * TAPS + lax.iota(jnp.int32, TAPS)
            patch = triton.load(
                x_ref.at[first[:, None] + shapes.beyond(tap)[None]],
                mask=(place < shapes.places)[:, None] & (tap < shapes.taps)[None],
                other=0.0,
            )
            factor = triton.load(
                kernel_ref.at[tap[:, None], feature[None]],
                mask=(tap < shapes.taps)[:, None] & (feature < features)[None],
                other=0.0,
            )
            return total + _dot(patch, factor, 1)

        total = jnp.zeros((PLACES, wide), jnp.float32)
        total = lax.fori_loop(0, -(-shapes.taps // TAPS), step, total)
        triton.store(
            out_ref.at[place[:, None], feature[None]],
            total,
            mask=(place < shapes.places)[:, None] & (feature < features)[None],
        )

    grid = pl.cdiv(shapes.places, PLACES), pl.cdiv(features, wide)
    flat = kernel.reshape(shapes.taps, features)
    out = shapes.places, features
    return _called(program, out, grid, interpret, x.reshape(-1), flat).reshape(
        shapes.out
    )


def _gradient(x, dy, kernel: tuple, strides: int, interpret: bool) -> jax.Array:
    """Returns the gradient of a kernel: patches, transposed, times `dy`."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    height, width, channels, features = kernel
    shapes = Shapes(x.shape, (height, width, channels, features), strides, interpret)
    wide = _power(features)
    shares = pl.cdiv(shapes.places, SHARE)
    steps = pl.cdiv(shapes.places, shares * PLACES)

    def program(x_ref, dy_ref, out_ref):
        tap = pl.program_id(0) * TAPS + lax.iota(jnp.int32, TAPS)
        feature = pl.program_id(1) * wide + lax.iota(jnp.int32, wide)
        share, beyond = pl.program_id(2), shapes.beyond(tap)

        def step(number, total):
            begin = (share * steps + number) * PLACES
            place = begin + lax.iota(jnp.int32, PLACES)
            there = (place < shapes.places)[:, None]
            patch = triton.load(
                x_ref.at[shapes.first(place)[:, None] + beyond[None]],
                mask=there & (tap < shapes.taps)[None],
                other=0.0,
            )
            slope = triton.load(
                dy_ref.at[place[:, None], feature[None]],
                mask=there & (feature < features)[None],
                other=0.0,
            )
            return total + _dot(patch, slope, 0)

        total = jnp.zeros((TAPS, wide), jnp.float32)
        total = lax.fori_loop(0, steps, step, total)
        triton.store(
            out_ref.at[share, tap[:, None], feature[None]],
            total,
            mask=(tap < shapes.taps)[:, None] & (feature < features)[None],
        )

    grid = pl.cdiv(shapes.taps, TAPS), pl.cdiv(features, wide), shares
    out = shares, shapes.taps, features
    flat = dy.reshape(shapes.places, features)
    parts = _called(program, out, grid, interpret, x.reshape(-1), flat)
    return parts.sum(0).reshape(kernel)


def _dot(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """Returns the product over an `axis` of a and the first one of b."""
    return lax.dot_general(
        a, b, (((axis,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )


def _power(features: int) -> int:
    """Returns the number of output channels of a program: a power of two."""
    return min(WIDEST, max(NARROWEST, 1 << (features - 1).bit_length()))


def _called(program: Callable, shape, grid, interpret: bool, a, b) -> jax.Array:
    """Returns the result of a program on each place of a grid, float32 of a shape."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    a = varying_like(a, b)
    kind = jax.typeof(a).manual_axis_type
    return pl.pallas_call(
        program,
        jax.ShapeDtypeStruct(shape, jnp.float32, manual_axis_type=kind),
        grid=grid,
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
    )(a, varying_like(b, a))
