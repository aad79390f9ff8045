"""The kernels of a blocked hash for GPUs: each reads a vector or a message once.

On a GPU the loop over tiles of `hashed` is a loop of kernel launches. Here one kernel
has a program for each block of buckets, or of coordinates. A program of `apply` visits
the tiles in order and reads what they add to its buckets, so sums have a fixed order.
Hashes and signs are those of the loop, bit for bit.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core import hashing
from fl_sketch.core.hashing import flip
from fl_sketch.core.kernels import launch

BLOCK = 1024  # buckets or coordinates of a program
THREADS = 32  # of a warp
UNROLLED = 4  # tiles that a program reads at a time
PROGRAMS = 2112  # about as many as an H100 runs at a time, twice
LONG_ROW = 2**22  # buckets, of which a GPU's cache has no room for two copies
ROWS = 8  # of a message, made in one pass over a vector


class Blocks(NamedTuple):
    """A blocked hash of vectors of length `d`, into `rows` of `cols` buckets each.

    Attributes:
      per_row: the number of buckets that a coordinate has in every row.
      first: the term of a larger hash that is the first of this one.
      interpret: whether to run the kernels without a GPU, slowly, to test them.
    """

    d: int
    cols: int
    rows: int
    per_row: int
    first: int = 0
    interpret: bool = False

    @property
    def tile(self) -> int:
        """The number of coordinates that share an offset."""
        return min(self.cols, self.d)

    @property
    def terms(self) -> int:
        """The number of buckets of a coordinate."""
        return self.rows * self.per_row

    def draw(self, key) -> tuple[jax.Array, jax.Array]:
        """Returns the offsets, [tiles, terms], and the seeds of the signs."""
        key_offsets, key_signs = jax.random.split(key)
        shape = -(-self.d // self.tile), self.rows, self.per_row
        drawn = hashing.offsets(key_offsets, shape, self.cols)
        seeds = hashing.sign_seeds(key_signs, self.terms)
        return drawn.reshape(-1, self.terms), seeds

    def mask(self, seeds, index, term: int) -> jax.Array:
        """Returns the signs of a term, as `hashing.flip` takes them."""
        return hashing.sign_mask(seeds, index, self.first + term)


def apply(blocks: Blocks, offsets, seeds, x: jax.Array) -> jax.Array:
    """Returns the sums of the buckets, (rows, cols), of signed coordinates."""

    @jax.custom_vjp
    def summed(x):
        passes = [
            _sums(blocks, range(blocks.rows)[row : row + ROWS], offsets, seeds, x)
            for row in range(0, blocks.rows, ROWS)
        ]
        return jnp.concatenate(passes)

    def backward(like, tables):
        return (read(blocks, sum, offsets, seeds, tables).astype(like.dtype),)

    summed.defvjp(lambda x: (summed(x), jnp.zeros(0, x.dtype)), backward)
    return summed(x)


def read(blocks: Blocks, reduce: Callable, offsets, seeds, tables) -> jax.Array:
    """Returns for every coordinate `reduce` of the list of its signed buckets.

    The gradient of their sum is `apply`. That of another `reduce`, of rows of one
    bucket each, is that of the rows read one by one.
    """

    @jax.custom_vjp
    def reduced(tables):
        return _read(blocks, reduce, offsets, seeds, tables)

    def row_by_row(tables):
        rows = []
        for row in range(blocks.rows):
            one, own = blocks._replace(rows=1, first=row), slice(row, row + 1)
            rows.append(read(one, sum, offsets[:, own], seeds, tables[own]))
        return reduce(rows)

    def backward(tables, x):
        if reduce is sum:
            return (apply(blocks, offsets, seeds, x),)
        return jax.vjp(row_by_row, tables)[1](x)

    reduced.defvjp(lambda tables: (reduced(tables), tables), backward)
    return reduced(tables)


def _sums(blocks: Blocks, rows: range, offsets, seeds, x) -> jax.Array:
    """Returns some rows of a message, of one pass over a vector.

    Programs have a block of buckets and a share of the tiles each. Partial sums of the
    shares are added up at the end.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    d, cols, tile, per_row = blocks.d, blocks.cols, blocks.tile, blocks.per_row
    whole, last = divmod(d, tile)  # tiles of full length, and the length of the last
    block = _power(cols)
    across = -(-cols // block)
    each = -(-whole // max(1, min(PROGRAMS // across, whole // UNROLLED)))
    shares = -(-whole // each)

    def kernel(x_ref, offsets_ref, seeds_ref, out_ref):
        place = pl.program_id(0) * block + lax.iota(jnp.int32, block)
        bucket = jnp.minimum(place, cols - 1)  # the last block reads some twice
        seeds = [seeds_ref[k] for k in range(seeds_ref.shape[0])]
        share = pl.program_id(1)
        begin = share * each
        tiles = jnp.minimum(whole - begin, each)

        def added(sums, number, first, inside):
            """Adds a tile to the sums of the rows.

            `first` is its first coordinate, and `inside` says by their place in it
            which of its coordinates count; None: all.
            """
            totals = []
            for row, total in zip(rows, sums, strict=True):
                values = []
                for term in range(row * per_row, (row + 1) * per_row):
                    offset = offsets_ref[number, term]
                    start = first - offset
                    index = bucket + jnp.where(bucket < offset, start + cols, start)
                    mask = inside and inside(index - first)
                    value = triton.load(x_ref.at[index], mask=mask, other=inside and 0)
                    sign = blocks.mask(seeds, index.astype(jnp.uint32), term)
                    values.append(flip(value, sign))
                totals.append(total + functools.reduce(jnp.add, values))
            return tuple(totals)

        short = (lambda at: at < tile) if tile < cols else None

        def step(number, sums, count):
            for ahead in range(count):
                which = begin + number * count + ahead
                sums = added(sums, which, which * tile, short)
            return sums

        def ends(at):
            """Returns which coordinates are those of the last, shorter tile."""
            ours = pl.program_id(1) == pl.num_programs(1) - 1
            return (at >= tile - last) & (at < tile) & ours

        sums = tuple(jnp.zeros(block, jnp.float32) for _ in rows)
        several, single = (functools.partial(step, count=n) for n in (UNROLLED, 1))
        sums = lax.fori_loop(0, tiles // UNROLLED, several, sums)
        sums = lax.fori_loop(tiles // UNROLLED * UNROLLED, tiles, single, sums)
        if last:
            sums = added(sums, whole, d - tile, ends)
        for number, total in enumerate(sums):
            triton.store(out_ref.at[share, number, place], total, mask=place < cols)

    sums = launch(
        kernel,
        *(x, offsets, seeds),
        shape=(shares, len(rows), cols),
        grid=(across, shares),
        warps=_warps(block),
        interpret=blocks.interpret,
    )
    return sums.sum(0) if shares > 1 else sums[0]


def _read(blocks: Blocks, reduce: Callable, offsets, seeds, tables) -> jax.Array:
    """Returns `reduce` of the signed buckets of every coordinate, in one pass."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    d, cols, tile = blocks.d, blocks.cols, blocks.tile
    tiles = -(-d // tile)
    # Programs that read the same buckets of a long row follow each other.
    by_bucket = blocks.terms == 1 and cols >= LONG_ROW
    block = _power(tile)
    across = -(-(cols if by_bucket else tile) // block)

    def kernel(tables_ref, offsets_ref, seeds_ref, out_ref):
        program = pl.program_id(0)
        seeds = [seeds_ref[k] for k in range(seeds_ref.shape[0])]
        fastest = jnp.int32(tiles if by_bucket else across)
        slow, fast = lax.div(program, fastest), lax.rem(program, fastest)
        number, part = (fast, slow) if by_bucket else (slow, fast)
        first = jnp.minimum(number * tile, d - tile)
        place = part * block + lax.iota(jnp.int32, block)
        if by_bucket:
            bucket, offset = place, offsets_ref[number, 0]
            place = jnp.where(bucket < offset, bucket + cols, bucket) - offset
            place = jnp.where(bucket < cols, place, d)
        inside = (place < tile) & (first + place >= number * tile)
        index = first + place
        values = []
        for term in range(blocks.terms):
            bucket = place + offsets_ref[number, term]
            bucket = jnp.where(bucket >= cols, bucket - cols, bucket)
            row = tables_ref.at[term // blocks.per_row, bucket]
            value = triton.load(row, mask=inside, other=0)
            sign = blocks.mask(seeds, index.astype(jnp.uint32), term)
            values.append(flip(value, sign))
        triton.store(out_ref.at[index], reduce(values), mask=inside)

    return launch(
        kernel,
        *(tables, offsets, seeds),
        shape=(d,),
        grid=(tiles * across,),
        warps=_warps(block),
        interpret=blocks.interpret,
    )


def _warps(block: int) -> int:
    """Returns the warps of a program for a block of buckets or coordinates."""
    return max(1, min(8, block // (4 * THREADS)))


def _power(size: int) -> int:
    """Returns the length of the blocks of an axis: a power of two."""
    return min(BLOCK, max(THREADS, 1 << (size - 1).bit_length()))
