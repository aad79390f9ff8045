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
from jax.custom_batching import custom_vmap

from fl_sketch.core.kernels import launch
from fl_sketch.fast import plain
from fl_sketch.fast.pooling import Pads, max_pool

PLACES = 128  # outputs of a program
TAPS = (32, 16)  # numbers of a patch that a program multiplies at a time
FEW = 32  # the same where they are not of one pixel
WIDEST = 64  # output channels of a program
NARROWEST = 16  # rows and columns of a product
SHARE = 2048  # outputs that a program of the kernel's gradient adds up


class Shapes(NamedTuple):
    """The sizes of a convolution.

    Attributes:
      image: examples, height, width and channels.
      kernel: height, width, input channels and output channels.
      pads: zeros (before, after) the height and the width.
    """

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    pads: Pads
    strides: int

    @property
    def out(self) -> tuple[int, int, int, int]:
        """Examples, height, width and channels of the output."""
        rows, cols = (
            (self.image[axis + 1] + sum(self.pads[axis]) - self.kernel[axis])
            // self.strides
            + 1
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

    @property
    def together(self) -> int:
        """The number of taps that a program multiplies at a time.

        Where it divides the channels, they are neighbours of one pixel.
        """
        fitting = [size for size in TAPS if self.kernel[2] % size == 0]
        return fitting[0] if fitting else FEW

    def patches(self, x_ref: Any, place: jax.Array, number: jax.Array) -> jax.Array:
        """Returns some numbers of the patches of some places: (places, together)."""
        from jax.experimental.pallas import triton

        examples, rows, cols, _ = self.out
        _, height, width, channels = self.image
        (top, _), (left, _) = self.pads
        example, inside = _divided(place, rows * cols)
        row, col = _divided(inside, cols)
        row, col = row * self.strides - top, col * self.strides - left
        first = ((example * height + row) * width + col) * channels
        here = place < examples * rows * cols
        begin, size = number * self.together, self.together
        if channels % size == 0:  # all of one pixel
            pixel, channel = _divided(jnp.asarray(begin, jnp.int32), channels)
            down, right = _divided(pixel, self.kernel[1])
            beyond = (down * width + right) * channels + channel
            tap = beyond + lax.iota(jnp.int32, size)
            if any(map(any, self.pads)):
                row, col = row + down, col + right
                here &= (row >= 0) & (row < height) & (col >= 0) & (col < width)
            mask = here[:, None]
        else:
            tap = begin + lax.iota(jnp.int32, size)
            pixel, channel = _divided(tap, channels)
            down, right = _divided(pixel, self.kernel[1])
            mask = here[:, None] & (tap < self.taps)[None]
            if any(map(any, self.pads)):
                row, col = row[:, None] + down[None], col[:, None] + right[None]
                mask &= (row >= 0) & (row < height) & (col >= 0) & (col < width)
            tap = (down * width + right) * channels + channel
        at = first[:, None] + tap[None]
        mask = jnp.broadcast_to(mask, at.shape)
        return triton.load(x_ref.at[at], mask=mask, other=0.0)


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    pads: Pads,
    strides: int = 1,
    *,
    pool: bool = False,
    interpret: bool = False,
) -> jax.Array:
    """Returns a convolution, as `fast.forms.convolve` does.

    Args:
      interpret: whether to run the programs without a GPU, slowly, to test them.
    """
    y: Any = _convolved(pads, strides, interpret, x, kernel)
    return max_pool(y) if pool else y


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _convolved(pads: Pads, strides: int, interpret: bool, x, kernel) -> jax.Array:
    shapes = Shapes(x.shape, kernel.shape, pads, strides)
    xla = functools.partial(plain.product, pads=pads, strides=strides)
    ours = functools.partial(_products, shapes, interpret)
    return _by_clients(xla, ours)(x, kernel)


def _forward(pads, strides, interpret, x, kernel):
    return _convolved(pads, strides, interpret, x, kernel), (x, kernel)


def _backward(pads, strides, interpret, residuals, dy):
    xla = functools.partial(plain.gradients, pads=pads, strides=strides)
    ours = functools.partial(_gradients, pads, strides, interpret)
    return _by_clients(xla, ours)(*residuals, dy)


_convolved.defvjp(_forward, _backward)


def _by_clients(xla: Callable, ours: Callable) -> Callable:
    """Returns the form of XLA, which under `vmap` over kernels becomes ours."""
    one = custom_vmap(xla)

    @one.def_vmap
    def _many(size, batched, x, kernel, *more):
        del size
        axes = tuple(0 if own else None for own in batched)
        form = ours if any(batched[1:]) else xla
        results = jax.vmap(form, axes)(x, kernel, *more)
        return results, jax.tree.map(lambda _: True, results)

    return one


def _gradients(pads: Pads, strides: int, interpret: bool, x: Any, kernel: Any, dy: Any):
    """Returns the gradients of the images and of the kernel."""
    shapes = Shapes(x.shape, kernel.shape, pads, strides)
    slopes = _gradient(shapes, interpret, x, dy)
    if strides > 1:
        between = (0, 0, strides - 1)
        plan = [(0, 0, 0), between, between, (0, 0, 0)]
        dy = lax.pad(dy, jnp.zeros((), dy.dtype), plan)
    ends = []
    for axis, (before, _) in enumerate(pads):
        size, window = x.shape[axis + 1], kernel.shape[axis]
        ends.append((window - 1 - before, size + before - dy.shape[axis + 1]))
    turned = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    shapes = Shapes(dy.shape, turned.shape, (ends[0], ends[1]), 1)
    return _products(shapes, interpret, dy, turned), slopes


def _products(shapes: Shapes, interpret: bool, x, kernel) -> jax.Array:
    """Returns a convolution: patches times kernel."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    features, size = kernel.shape[-1], shapes.together
    wide = _power(features)

    def program(x_ref, kernel_ref, out_ref):
        place = pl.program_id(0) * PLACES + lax.iota(jnp.int32, PLACES)
        feature = pl.program_id(1) * wide + lax.iota(jnp.int32, wide)

        def step(number, total):
            tap = number * size + lax.iota(jnp.int32, size)
            at, mask = _piece(tap, feature, shapes.taps, features)
            factor = triton.load(kernel_ref.at[at], mask=mask, other=0.0)
            return total + _dot(shapes.patches(x_ref, place, number), factor, 1)

        total = jnp.zeros((PLACES, wide), jnp.float32)
        total = lax.fori_loop(0, -(-shapes.taps // size), step, total)
        at, mask = _piece(place, feature, shapes.places, features)
        triton.store(out_ref.at[at], total, mask=mask)

    grid = pl.cdiv(shapes.places, PLACES), pl.cdiv(features, wide)
    flat = kernel.reshape(shapes.taps, features)
    out = shapes.places, features
    options = {"shape": out, "grid": grid, "stages": 3, "interpret": interpret}
    return launch(program, x.reshape(-1), flat, **options).reshape(shapes.out)


def _gradient(shapes: Shapes, interpret: bool, x, dy) -> jax.Array:
    """Returns the gradient of a kernel: patches, transposed, times `dy`."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    features, size = dy.shape[-1], shapes.together
    wide = _power(features)
    shares = pl.cdiv(shapes.places, SHARE)
    steps = pl.cdiv(shapes.places, shares * PLACES)

    def program(x_ref, dy_ref, out_ref):
        feature = pl.program_id(1) * wide + lax.iota(jnp.int32, wide)
        part, share = pl.program_id(0), pl.program_id(2)

        def step(number, total):
            begin = (share * steps + number) * PLACES
            place = begin + lax.iota(jnp.int32, PLACES)
            at, mask = _piece(place, feature, shapes.places, features)
            slope = triton.load(dy_ref.at[at], mask=mask, other=0.0)
            return total + _dot(shapes.patches(x_ref, place, part), slope, 0)

        total = jnp.zeros((size, wide), jnp.float32)
        total = lax.fori_loop(0, steps, step, total)
        tap = part * size + lax.iota(jnp.int32, size)
        at, mask = _piece(tap, feature, shapes.taps, features)
        triton.store(out_ref.at[share, *at], total, mask=mask)

    grid = pl.cdiv(shapes.taps, size), pl.cdiv(features, wide), shares
    out, flat = (shares, shapes.taps, features), dy.reshape(shapes.places, features)
    options = {"shape": out, "grid": grid, "stages": 1, "interpret": interpret}
    parts = launch(program, x.reshape(-1), flat, **options)
    return parts.sum(0).reshape(shapes.kernel)


def _piece(rows: jax.Array, cols: jax.Array, most_rows: int, most_cols: int):
    """Returns the index of a piece of a matrix, and which of it is inside."""
    inside = (rows < most_rows)[:, None] & (cols < most_cols)[None]
    return (rows[:, None], cols[None]), inside


def _divided(x: jax.Array, by: int) -> tuple[jax.Array, jax.Array]:
    """Returns the quotient and the rest of numbers that are not negative."""
    by_all = jnp.full_like(x, by)
    return lax.div(x, by_all), lax.rem(x, by_all)


def _dot(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """Returns the product over an `axis` of a and the first one of b."""
    return lax.dot_general(
        a, b, (((axis,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )


def _power(features: int) -> int:
    """Returns the number of output channels of a program: a power of two."""
    return min(WIDEST, max(NARROWEST, 1 << (features - 1).bit_length()))
