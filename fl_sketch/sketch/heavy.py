"""Heavy coordinates of a vector from its multi-row count sketch (HEAVYMIX).

FedSKETCH, Algorithm 3: estimate `|x|^2` from the sketch, call a coordinate heavy when
its estimate squared is at least `|x|^2 / m`, and fill up with others to exactly m, at
random as printed, or by their estimates.
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
    """Returns an estimate of `|x|^2`, float32 [], from `message`, a count sketch of x.

    The message has shape (rows, cols). The estimate is the median over rows of the
    energy of a row. Rows are stored divided by sqrt(rows), so that R^T R has mean one;
    that is undone here.

    >>> import jax
    >>> from fl_sketch import sketch
    >>> op, x = sketch.count_sketch(cols=200, rows=5), jnp.ones(1000)
    >>> bool(500 < sketch.squared_norm(op.apply(jax.random.key(0), x)) < 1500)
    True

    Raises:
      ValueError: for a message of another number of axes.
    """
    if jnp.ndim(message) != 2:
        msg = f"Expected a sketch of shape (rows, cols), got {jnp.shape(message)}."
        raise ValueError(msg)
    energies = jnp.sum(jnp.square(message), axis=1) * message.shape[0]
    return median(list(energies))


def heavy_coordinates(
    op: Sketch, key: Key, message: jax.Array, d: int, m: int, *, fill: str = "random"
) -> jax.Array:
    """Returns m distinct coordinates, int32: the heavy ones and others.

    Coordinates with `estimate^2 >= |x|^2 / m` are heavy (the paper prints the estimate
    itself; the source it cites compares squares). If more than m are, the m largest
    are returned; if fewer, others are added. All who know the message and the key find
    the same set. Heaviest first. Few coordinates of a gradient are heavy, so that most
    are random if the others are; the code of SketchedSGD's authors takes those with
    the largest estimates, heavy or not.

    Args:
      op: the multi-row count sketch that made the message.
      key: the key it was made with.
      message: a sketch of x, of shape (rows, cols).
      d: the length of x.
      m: the number of coordinates to return, at most d.
      fill: the choice of the others: "random", all alike, or "top", the largest ones.
    """
    validate.at_least_one(m=m)
    validate.one_of(FILLS, fill=fill)
    validate.at_most(d, "the length of the vector", m=m)
    norm2 = squared_norm(message)
    energy = jnp.square(op.estimate(key, message, d))
    # One ranking for both: a random number below 1 for the others, above 1 for the
    # heavy ones in the order of their energy. NaN ranks first, so it is not hidden.
    seed = jax.random.bits(apart(key, Purpose.FILLING), (), jnp.uint32)
    lot = (mix(lax.iota(jnp.uint32, d) ^ seed) >> 8).astype(jnp.float32) * 2**-24
    if fill == "top":  # lots where all are zero, that nobody is always the first
        return lax.top_k(jnp.where(norm2 == 0, lot, energy), m)[1]
    light = energy * m < norm2
    rank = jnp.where(light | (norm2 == 0), lot, 1 + energy * m / norm2)
    return lax.top_k(rank, m)[1]
