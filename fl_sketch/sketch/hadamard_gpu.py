"""The Walsh-Hadamard transform with random signs for GPUs, in few passes over memory.

A vector of 2^24 numbers takes three passes. The first transforms blocks of 4096
neighbours: a block is a matrix A of 64x64, and its transform is H A H. Three pieces of
bfloat16 hold a float32, and the entries of H are 1 and -1, so products of bfloat16 are
exact. Each later pass transforms up to 64 numbers at equal distances, by butterflies in
registers. The first pass applies signs to its input, or the last pass to its output.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fl_sketch.core.hashing import flip, sign_mask
from fl_sketch.core.kernels import launch
from fl_sketch.core.trees import LARGEST

SIDE = 64  # of the matrix of a block
BLOCK = SIDE * SIDE
RADIX = 6  # bits of a later pass
LANES = 128  # neighbours that a program of a later pass works on


class Mixing(NamedTuple):
    """The map H D from vectors of length `d` to those of length `n`, a power of two.

    `interpret` runs the kernels without a GPU, slowly, to test them.
    """

    d: int
    n: int
    interpret: bool = False

    @property
    def possible(self) -> bool:
        """Whether there are kernels for this n."""
        return BLOCK <= self.n <= LARGEST


def mixed(mixing: Mixing, seeds: jax.Array, x: jax.Array) -> jax.Array:
    """Returns H D x, unnormalised."""

    @jax.custom_vjp
    def forward(x):
        y = _first(mixing, seeds, x, signed=True)
        return _rest(mixing, seeds, y, signed=False)

    def backward(like, y):
        return (unmixed(mixing, seeds, y).astype(like.dtype),)

    forward.defvjp(lambda x: (forward(x), jnp.zeros(0, x.dtype)), backward)
    return forward(x)


def unmixed(mixing: Mixing, seeds: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the first `d` numbers of D H y, unnormalised."""

    @jax.custom_vjp
    def backward(y):
        y = _first(mixing, seeds, y, signed=False)
        if mixing.n > BLOCK:
            return _rest(mixing, seeds, y, signed=True)
        index = lax.iota(jnp.uint32, mixing.d)
        return flip(y[: mixing.d], sign_mask(seeds, index, 0))

    backward.defvjp(
        lambda y: (backward(y), None), lambda _, x: (mixed(mixing, seeds, x),)
    )
    return backward(y)


def _first(mixing: Mixing, seeds, x, *, signed: bool) -> jax.Array:
    """Returns the transforms of blocks, of `x` padded with zeros."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    factor = jnp.asarray(matrix(SIDE), jnp.bfloat16)

    def kernel(x_ref, seeds_ref, factor_ref, out_ref):
        rows = lax.broadcasted_iota(jnp.int32, (SIDE, SIDE), 0)
        index = rows * SIDE + lax.broadcasted_iota(jnp.int32, (SIDE, SIDE), 1)
        index = pl.program_id(0) * BLOCK + index
        inside = index < x_ref.shape[0]
        block = triton.load(x_ref.at[index], mask=inside, other=0)
        block = block.astype(jnp.float32)
        if signed:
            mask = sign_mask([seeds_ref[0]], index.astype(jnp.uint32), 0)
            block = flip(block, mask)
        factor = factor_ref[...]
        for left in (False, True):
            products, rest = [], block
            for _ in range(3):
                piece = rest.astype(jnp.bfloat16)
                pair = (factor, piece) if left else (piece, factor)
                products.append(triton.dot(*pair))
                rest = rest - piece.astype(jnp.float32)
            block = functools.reduce(jnp.add, products)
        triton.store(out_ref.at[index], block)

    shape, grid = (mixing.n,), (mixing.n // BLOCK,)
    return launch(
        kernel, x, seeds, factor, shape=shape, grid=grid, interpret=mixing.interpret
    )


def matrix(n: int) -> np.ndarray:
    """Returns H_n, of 1 and -1."""
    from scipy import linalg  # takes a tenth of a second to import

    return linalg.hadamard(n).astype(np.float32)


def _rest(mixing: Mixing, seeds, x, *, signed: bool) -> jax.Array:
    """Returns the transform of what `_first` has made."""
    bits = (mixing.n // BLOCK).bit_length() - 1
    passes = -(-bits // RADIX)
    distance = BLOCK
    for number in range(passes):
        radix = 1 << (bits // passes + (number < bits % passes))
        last = signed and number == passes - 1
        x = _butterflies(mixing, seeds, x, radix, distance, signed=last)
        distance *= radix
    return x


def _butterflies(mixing, seeds, x, radix: int, distance: int, *, signed: bool):
    """Returns transforms of `radix` numbers that are a `distance` apart."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    length = mixing.d if signed else mixing.n

    def kernel(x_ref, seeds_ref, out_ref):
        program, across = pl.program_id(0), jnp.int32(distance // LANES)
        outer, inner = lax.div(program, across), lax.rem(program, across)
        first = outer * (radix * distance) + inner * LANES
        lanes = first + lax.iota(jnp.int32, LANES)
        places = [lanes + k * distance for k in range(radix)]
        values = [triton.load(x_ref.at[place]) for place in places]
        step = 1
        while step < radix:
            for k in range(radix):
                if not k & step:
                    a, b = values[k], values[k + step]
                    values[k], values[k + step] = a + b, a - b
            step *= 2
        for place, value in zip(places, values, strict=True):
            if signed:
                mask = sign_mask([seeds_ref[0]], place.astype(jnp.uint32), 0)
                value = flip(value, mask)  # noqa: PLW2901
            inside = place < length if signed else None
            triton.store(out_ref.at[place], value, mask=inside)

    shape, grid = (length,), (mixing.n // (radix * LANES),)
    return launch(kernel, x, seeds, shape=shape, grid=grid, interpret=mixing.interpret)
