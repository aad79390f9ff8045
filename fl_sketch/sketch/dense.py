"""Dense operators, Gaussian and AMS, whose matrix exists one small tile at a time.

R is cut into tiles of columns, each made from the key when it is needed, in `apply` and
again in `transpose`. Each takes b d operations. These operators are for checks of
theory, not for training large models.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core import validate
from fl_sketch.core.hashing import flip, mix
from fl_sketch.core.protocols import Sketch
from fl_sketch.core.trees import varying_like
from fl_sketch.sketch.from_vector import on_trees

# Entries of a tile: normals are made in several passes, bits in one.
NORMAL_TILE, SIGN_TILE = 2**16, 2**18


def gaussian(b: int) -> Sketch:
    """Returns R with independent entries N(0, 1/b), for messages of b numbers.

    `E|R^T R x - x|^2 = (d+1)/b |x|^2`, exactly.

    Reference: Song et al., Definition D.2.
    """
    validate.at_least_one(b=b)

    def tile(key, first, width):
        # One key per tile, so tiles are as independent as threefry.
        return jax.random.normal(jax.random.fold_in(key, first), (b, width))

    def left(key, s, first, width):
        return s @ tile(key, first, width)

    def right(key, x, first):
        return tile(key, first, x.size) @ x

    return _dense(b, left, right, NORMAL_TILE, resize=gaussian)


def ams(b: int) -> Sketch:
    """Returns R with entries +-1/sqrt(b), for messages of b numbers.

    `E|R^T R x - x|^2 = (d-1)/b |x|^2`, exactly. 32 rows share one mixed word a column,
    of which each row takes one bit.

    Reference: Song et al., Definition D.4; Alon, Matias and Szegedy (1999).
    """
    validate.at_least_one(b=b)

    def masks(key, first, width):
        """Returns the signs of a tile, in the top bits of an array (b, width)."""
        seeds = jax.random.bits(key, (-(-b // 32), 1, 1), jnp.uint32)
        column = first.astype(jnp.uint32) + lax.iota(jnp.uint32, width)
        words = mix(column ^ seeds) << jnp.arange(32, dtype=jnp.uint32)[:, None]
        return words.reshape(-1, width)[:b] & jnp.uint32(0x80000000)

    def left(key, s, first, width):
        return jnp.sum(flip(s[:, None], masks(key, first, width)), axis=0)

    def right(key, x, first):
        return jnp.sum(flip(x, masks(key, first, x.size)), axis=1)

    return _dense(b, left, right, SIGN_TILE, resize=ams)


def _dense(
    b: int, left: Callable, right: Callable, entries: int, resize: Callable
) -> Sketch:
    """Returns the Sketch of sqrt(b) R, given its products with the tiles.

    Args:
      left: `(key, s, first, width) -> s R[:, first : first + width]`, times sqrt(b).
      right: `(key, x, first) -> R[:, first : first + x.size] x`, times sqrt(b).
      entries: about the number of entries of R to make at a time.
    """
    scale = 1 / math.sqrt(b)

    def tiles(d):
        """Returns the width of a tile, how many there are, and what they leave."""
        width = min(d, max(1, entries // b))
        return width, *divmod(d, width)

    def apply(key, x):
        width, count, rest = tiles(x.size)

        def add_tile(number, s):
            first = number * width
            part = lax.dynamic_slice(x, (first,), (width,)).astype(jnp.float32)
            return s + right(key, part, first)

        s = varying_like(jnp.zeros(b), x, key)
        s = lax.fori_loop(0, count, add_tile, s)
        if rest:
            last = x[x.size - rest :].astype(jnp.float32)
            s += right(key, last, jnp.int32(x.size - rest))
        return s * scale

    def transpose(key, s, d):
        width, count, rest = tiles(d)

        def write_tile(number, x):
            first = number * width
            return lax.dynamic_update_slice(x, left(key, s, first, width), (first,))

        x = varying_like(jnp.zeros(d), s, key)
        x = lax.fori_loop(0, count, write_tile, x)
        if rest:
            last = left(key, s, jnp.int32(d - rest), rest)
            x = lax.dynamic_update_slice(x, last, (d - rest,))
        return x * scale

    return on_trees(
        shape=lambda d: (b,), apply=apply, transpose=transpose, resize=resize
    )
