"""Integer noise whose distribution is known: a draw from an exact table.

A number takes 64 random bits: a sign, a column of the table and 32 bits that are
compared with the column's limit. Where these are equal, once in 2^32 draws, 96 more
bits decide. So a number has exactly the chances of `integer_tables.weights`, and its
time does not depend on its size. `jax.random.poisson` does not do: at a rate of 5e5 its
differences have four per cent too little variance.

>>> import jax
>>> noise(jax.random.key(0), (3,), "skellam", 100.0).dtype
dtype('int32')
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core.protocols import Key
from fl_sketch.privacy import integer_tables
from fl_sketch.privacy.integer_tables import WORD, Table

MORE = 1  # the use of a key for the bits that decide where the first are equal


def noise(key: Key, shape: tuple[int, ...], kind: str, variance: float) -> jax.Array:
    """Returns independent integers of a noise, int32.

    Args:
      key: the key. Noise that protects someone needs one of `core.chacha`.
      shape: the shape of the array.
      kind: one of `lattice.KINDS`.
      variance: the variance of Skellam noise, or sigma^2 of a discrete Gaussian; known
        while tracing.
    """
    table = integer_tables.table(kind, float(variance))
    return drawn(key, math.prod(shape), table).reshape(shape)


def drawn(key: Key, count: int, table: Table) -> jax.Array:
    """Returns `count` independent draws from a table, with random signs, int32."""
    limits, others = jnp.asarray(table.limits), jnp.asarray(table.others)
    bits = (table.others.size - 1).bit_length()

    def begun():
        where, first = jax.random.bits(key, (2, count), jnp.uint32)
        return where, first, ((where << 1) >> (WORD - bits)).astype(jnp.int32)

    def signed(where, column, below):
        size = jnp.where(below, column, others[column])
        return jnp.where(where >> (WORD - 1) == 1, -size, size)

    def decided(_):
        where, first, column = begun()
        rest = jax.random.bits(jax.random.fold_in(key, MORE), (3, count), jnp.uint32)
        below = _smaller([first, *rest], [word[column] for word in limits])
        return signed(where, column, below), jnp.zeros_like(equal)

    where, first, column = begun()
    limit = limits[0][column]
    equal = jnp.any(first == limit)
    # A loop of no step or one: under vmap too, it takes none where nothing is equal.
    # All but its result is made again, since XLA would copy what a loop reads.
    start = signed(where, column, first < limit), equal
    return lax.while_loop(lambda state: state[1], decided, start)[0]


def _smaller(words, limits) -> jax.Array:
    """Returns whether numbers of several words, the first leading, are smaller."""
    smaller = words[-1] < limits[-1]
    for word, limit in list(zip(words, limits, strict=True))[-2::-1]:
        smaller = (word < limit) | ((word == limit) & smaller)
    return smaller
