"""The hash of a count sketch: blocked or independent.

The blocked hash needs no scatter. It cuts x into tiles of length `cols` and adds each
tile into a table of length 2 `cols` at an independent, uniform offset; then it adds the
two halves, which makes the offsets cyclic. Coordinates of different tiles collide with
probability exactly 1/cols and those of one tile never: the pairwise independence of
Definition D.5, or better. Memory is read once, in order, and sums have a fixed order.
The independent hash places every coordinate separately, for guarantees that need more
than pairwise independence.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core.hashing import mix, offsets
from fl_sketch.core.protocols import Key


class Buckets(NamedTuple):
    """A way to place tiles of consecutive coordinates into a row of buckets.

    Attributes:
      tile: `(d) -> int`, the number of coordinates that are placed at a time.
      draw: `(key, d, rows, per_row) -> places`, all of its randomness, for `per_row`
        entries of every coordinate in each of `rows` rows.
      widen: `(row) -> table`, on which `add` and `read` work.
      fold: `(table) -> row`, the adjoint of `widen`.
      add: `(table, places, number, term, index, values) -> table`, tile `number` with
        the coordinates `index`.
      read: `(table, places, number, term, index) -> values`, the adjoint of `add`.
    """

    tile: Callable[[int], int]
    draw: Callable[[Key, int, int, int], jax.Array]
    widen: Callable[[jax.Array], jax.Array]
    fold: Callable[[jax.Array], jax.Array]
    add: Callable[..., jax.Array]
    read: Callable[..., jax.Array]


def blocked(cols: int) -> Buckets:
    """Places a tile of `cols` coordinates at one cyclic offset for each of its terms.

    Offsets are drawn for every tile, row and term. A shorter vector is one tile.
    """

    def tile(d):
        return min(cols, d)

    def draw(key, d, rows, per_row):
        drawn = offsets(key, (-(-d // tile(d)), rows, per_row), cols)
        return drawn.reshape(-1, rows * per_row)

    def add(table, places, number, term, index, values):
        del index
        start = (places[number, term],)
        before = lax.dynamic_slice(table, start, values.shape)
        return lax.dynamic_update_slice(table, before + values, start)

    def read(table, places, number, term, index):
        return lax.dynamic_slice(table, (places[number, term],), index.shape)

    return Buckets(
        tile=tile,
        draw=draw,
        widen=lambda row: jnp.concatenate([row, row]),
        fold=lambda table: table[:cols] + table[cols:],
        add=add,
        read=read,
    )


def independent(cols: int) -> Buckets:
    """Places every coordinate at its own hash: a scatter, and a gather back.

    A GPU adds the terms of a scatter in no fixed order by default.
    """

    def draw(key, d, rows, per_row):
        del d
        return jax.random.bits(key, (rows * per_row,), jnp.uint32)

    def bucket(places, term, index):
        return (mix(index ^ places[term]) % jnp.uint32(cols)).astype(jnp.int32)

    def add(table, places, number, term, index, values):
        del number
        return table.at[bucket(places, term, index)].add(values)

    def read(table, places, number, term, index):
        del number
        return table[bucket(places, term, index)]

    return Buckets(
        tile=lambda d: min(2**16, d),
        draw=draw,
        widen=lambda row: row,
        fold=lambda table: table,
        add=add,
        read=read,
    )


BUCKETS = {"blocked": blocked, "independent": independent}
