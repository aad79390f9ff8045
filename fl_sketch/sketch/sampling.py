"""Operators that send coordinates unchanged: some of them, or all."""

import math

import jax
import jax.numpy as jnp

from fl_sketch.core import validate
from fl_sketch.core.hashing import (
    flip,
    sample_without_replacement,
    sign_mask,
    sign_seeds,
)
from fl_sketch.core.protocols import Sketch
from fl_sketch.core.trees import varying_like
from fl_sketch.sketch.from_vector import on_trees


def uniform_sampling(b: int) -> Sketch:
    """Returns R = sqrt(d/b) S D: b <= d coordinates without replacement, random signs.

    The error is exact: `E|R^T R x - x|^2 = (d/b - 1) |x|^2`, because every coordinate
    is kept with probability b/d and is then multiplied by d/b.

    Reference: Song et al., Definition D.8.
    """
    validate.at_least_one(b=b)

    def shape(d):
        if d is not None:
            validate.at_most(d, "sampling without replacement from d numbers", b=b)
        return (b,)

    def draw(key, d):
        key_rows, key_signs = jax.random.split(key)
        rows = sample_without_replacement(key_rows, b, d)
        mask = sign_mask(sign_seeds(key_signs, 1), rows.astype(jnp.uint32), 0)
        return rows, mask, math.sqrt(d / b)

    def apply(key, x):
        rows, mask, scale = draw(key, x.size)
        return flip(x[rows], mask) * scale

    def transpose(key, s, d):
        rows, mask, scale = draw(key, d)
        zeros = varying_like(jnp.zeros(d), s, key)
        return zeros.at[rows].set(flip(s, mask) * scale, unique_indices=True)

    return on_trees(
        shape=shape, apply=apply, transpose=transpose, resize=uniform_sampling
    )


def identity() -> Sketch:
    """Returns R = I: the update itself, as one float32 vector.

    `zeros` and `size` need `like`, and `resize` changes nothing.
    """

    def shape(d):
        if d is None:
            msg = "identity() needs an update: its message is as long."
            raise ValueError(msg)
        return (d,)

    return on_trees(
        shape=shape,
        apply=lambda key, x: x.astype(jnp.float32),
        transpose=lambda key, s, d: s,
        resize=lambda numbers: identity(),
    )
