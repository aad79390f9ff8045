"""Count sketches and sparse embeddings, at the speed of memory.

A count sketch adds every coordinate, with a random sign, to one bucket of each row. A
sparse embedding adds it to several buckets of its only row. The hash needs no scatter:
it cuts x into tiles of `cols` coordinates, and adds each tile to a row at a cyclic
offset. Offsets of tiles and rows are independent and uniform. x is read once, in order,
sums have a fixed order, and memory is only needed for the input and the message.

Two coordinates of different tiles share a bucket with a probability of at most 1/cols +
2^-32 (`hashing.offsets` takes a word modulo cols), and two of one tile never do. Within
a tile buckets depend on each other, h(j) = h(i) + j - i, so this is not the pairwise
independent hash of Song et al., Definition D.5. The errors below only need independent
signs and the probability that two coordinates meet.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core import validate
from fl_sketch.core.hashing import flip
from fl_sketch.core.platforms import by_platform
from fl_sketch.core.protocols import Sketch
from fl_sketch.core.trees import varying_like
from fl_sketch.sketch import hashed_gpu
from fl_sketch.sketch.from_vector import on_trees
from fl_sketch.sketch.hashed_gpu import Blocks
from fl_sketch.sketch.median import median


def count_sketch(cols: int, rows: int = 1) -> Sketch:
    """Returns the count sketch: one signed bucket a coordinate in each of `rows` rows.

    The message has shape (rows, cols). R has entries +-1/sqrt(rows), so that
    E[R^T R] = I for any number of rows. `transpose` is the mean over rows of the usual
    estimates, and `estimate` their median, which is FedSKETCH's PRIVIX. The error of
    the mean is at most `E|R^T R x - x|^2 <= (d-1)/(rows cols) |x|^2`, with d - cols in
    place of d - 1 if cols divides d.

    Args:
      cols: the number of buckets per row. More than d is allowed but wasteful.
      rows: independent repetitions. The guarantee of the median needs an odd number.
        For an even one it is the mean of the two in the middle.

    References: Charikar, Chen and Farach-Colton (2002); Song et al., Definition D.5;
    Haddadpour et al., Algorithms 1 and 2.
    """
    validate.at_least_one(cols=cols, rows=rows)

    def median_of_rows(terms):
        return median(terms) * rows  # the terms are those of a mean

    return _hashed(
        (cols, rows, 1),
        shape=(rows, cols),
        resize=lambda numbers: count_sketch(max(1, numbers // rows), rows),
        reduce=median_of_rows if rows > 1 else None,
    )


def sparse_embedding(b: int, nonzeros: int) -> Sketch:
    """Returns a map with `nonzeros` entries +-1/sqrt(nonzeros) in every column.

    They are anywhere in the column, without replacement. For s nonzeros and b dividing
    d, `E|R^T R x - x|^2 = ((d-b)/b + (s-1)/s) |x|^2`, below the (d-1)/b of independent
    columns.

    Derivation: it is sum_i x_i^2 sum_{j != i} E<c_i, c_j>^2 over columns c, since the
    diagonal of R^T R is 1. Two columns that share k places in independent positions
    have E<c_i, c_j>^2 = E[k]/s^2. In different tiles E[k] = s s/b. Within a tile they
    meet where two different offsets differ by j - i, E[k] = s(s-1)/(b-1).

    Reference: Nelson and Nguyen (2013); Song et al., Definition D.6.
    """
    validate.at_least_one(b=b, nonzeros=nonzeros)
    validate.at_most(b, "one entry a place, b places", nonzeros=nonzeros)
    return _hashed(
        (b, 1, nonzeros),
        shape=(b,),
        resize=lambda numbers: sparse_embedding(numbers, min(nonzeros, numbers)),
    )


def _hashed(sizes: tuple[int, int, int], *, shape, resize, reduce=None) -> Sketch:
    """Returns the Sketch of `Blocks(d, *sizes)`.

    `reduce` makes an estimate of the terms of a coordinate; None: their sum.
    """
    _, rows, per_row = sizes
    scale = math.sqrt(rows * per_row)

    def apply(key, x):
        blocks = Blocks(x.size, *sizes)
        loop = functools.partial(_apply, blocks)
        kernel = functools.partial(hashed_gpu.apply, blocks)
        tables = by_platform(*blocks.draw(key), x, default=loop, cuda=kernel)
        return (tables / scale).reshape(shape)

    def read_by(reduce):
        def read(key, s, d):
            blocks = Blocks(d, *sizes)
            loop = functools.partial(_read, blocks, reduce)
            kernel = functools.partial(hashed_gpu.read, blocks, reduce)
            tables = s.reshape(rows, -1) / scale
            return by_platform(*blocks.draw(key), tables, default=loop, cuda=kernel)

        return read

    return on_trees(
        shape=lambda d: shape,
        apply=apply,
        transpose=read_by(sum),
        estimate=reduce and read_by(reduce),
        resize=resize,
    )


def _apply(blocks: Blocks, offsets, seeds, x) -> jax.Array:
    """Returns the sums of the buckets, (rows, cols), of signed coordinates.

    Tiles are added into rows of twice the length, whose halves are added at the end.
    """
    d, cols, tile = blocks.d, blocks.cols, blocks.tile

    def add(number, first, values, rows):
        index, rows = _index(first, tile), list(rows)
        for term in range(blocks.terms):
            row, start = term // blocks.per_row, (offsets[number, term],)
            before = lax.dynamic_slice(rows[row], start, (tile,))
            signed = flip(values, blocks.mask(seeds, index, term))
            rows[row] = lax.dynamic_update_slice(rows[row], before + signed, start)
        return tuple(rows)

    def add_tile(number, rows):
        first = number * tile
        return add(number, first, lax.dynamic_slice(x, (first,), (tile,)), rows)

    row = varying_like(jnp.zeros(2 * cols), x, offsets)
    rows = lax.fori_loop(0, d // tile, add_tile, (row,) * blocks.rows)
    if d % tile:
        # The rest is the end of a tile of zeros, since padding x would copy it.
        rest = x[d - tile :].at[: tile - d % tile].set(0)
        rows = add(d // tile, d - tile, rest, rows)
    return jnp.stack([row[:cols] + row[cols:] for row in rows])


def _read(blocks: Blocks, reduce, offsets, seeds, tables) -> jax.Array:
    """Returns `reduce` of the signed buckets of every coordinate.

    The last tile overlaps the one before it, so tiles are written last to first.
    """
    d, tile = blocks.d, blocks.tile
    count = -(-d // tile)
    rows = [jnp.concatenate([row, row]) for row in tables]

    def write(step, x):
        number = count - 1 - step
        first = jnp.minimum(number * tile, d - tile)  # as `_apply` has it
        index, values = _index(first, tile), []
        for term in range(blocks.terms):
            row, start = rows[term // blocks.per_row], (offsets[number, term],)
            value = lax.dynamic_slice(row, start, (tile,))
            values.append(flip(value, blocks.mask(seeds, index, term)))
        return lax.dynamic_update_slice(x, reduce(values), (first,))

    x = varying_like(jnp.zeros(d), tables, offsets)
    return lax.fori_loop(0, count, write, x)


def _index(first, length) -> jax.Array:
    return jnp.asarray(first, jnp.uint32) + lax.iota(jnp.uint32, length)
