"""Heavy coordinates of a vector from its multi-row count sketch (HEAVYMIX).

FedSKETCH, Algorithm 3: estimate `|x|^2` from the sketch. A coordinate is heavy when the
square of its estimate is at least `|x|^2 / m`. (The paper prints the estimate itself;
the source it cites compares squares.) Others fill up to exactly m.
"""

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core import validate
from fl_sketch.core.hashing import mix
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.protocols import Key, Sketch
from fl_sketch.sketch.median import median

FILLS = ("random", "top")


def squared_norm(message: jax.Array) -> jax.Array:
    """Returns an estimate of `|x|^2` from a count sketch of x, of shape (rows, cols).

    It is the median of the rows' energies. The division of rows by sqrt(rows), for
    which R^T R has mean one, is undone here.
    """
    if jnp.ndim(message) != 2:
        msg = f"Expected a sketch of shape (rows, cols), got {jnp.shape(message)}."
        raise ValueError(msg)
    energies = jnp.sum(jnp.square(message), axis=1) * message.shape[0]
    return median(list(energies))


def heavy_coordinates(
    op: Sketch, key: Key, message: jax.Array, d: int, m: int, *, fill: str = "random"
) -> jax.Array:
    """Returns m <= d distinct coordinates of x, int32, heaviest first.

    If more than m are heavy, the largest are returned. All parties with the message and
    the key find the same set. Few coordinates of a gradient are heavy, so most of the m
    are random if the others are; the code of SketchedSGD's authors takes the largest
    estimates, heavy or not.

    Args:
      op: the multi-row count sketch.
      key: the key of the message.
      message: its sketch of x, of shape (rows, cols).
      d: the length of x.
      m: the number of coordinates.
      fill: the choice of the others: "random", as printed, or "top", the largest ones.
    """
    validate.at_least_one(m=m)
    validate.one_of(FILLS, fill=fill)
    validate.at_most(d, "the length of the vector", m=m)
    norm2 = squared_norm(message)
    energy = jnp.square(op.estimate(key, message, d))
    seed = jax.random.bits(apart(key, Purpose.FILLING), (), jnp.uint32)
    chance = (mix(lax.iota(jnp.uint32, d) ^ seed) >> 8).astype(jnp.float32) * 2**-24
    if fill == "top":  # at random where all are zero: no index is always first
        return lax.top_k(jnp.where(norm2 == 0, chance, energy), m)[1]
    # One ranking for both: a random number below 1 for the others, above 1 for the
    # heavy ones in the order of their energy. NaN ranks first, so it is not hidden.
    light = energy * m < norm2
    rank = jnp.where(light | (norm2 == 0), chance, 1 + energy * m / norm2)
    return lax.top_k(rank, m)[1]
