"""The kernels of a blocked hash for GPUs: each reads a vector or a message once.

On a GPU the loop over tiles of `hashed` is a loop of kernel launches. Here one kernel
has a program for each block of buckets, or of coordinates. A program of `apply` visits
the tiles in order and reads what they add to its buckets, so sums have a fixed order.
Hashes and signs are those of the loop, bit for bit.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core.hashing import Signs, flip
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
      interpret: whether to run the kernels without a GPU, slowly, to test them.
    """

    signs: Signs
    d: int
    cols: int
    rows: int
    per_row: int
    interpret: bool = False

    @property
    def tile(self) -> int:
        """The number of coordinates that share an offset."""
        return min(self.cols, self.d)

    @property
    def terms(self) -> int:
        """The number of buckets of a coordinate."""
        return self.rows * self.per_row


def apply(blocks: Blocks, places, seeds, x: jax.Array) -> jax.Array:
    """Returns the sums of the buckets, (rows, cols), of signed coordinates."""

    @jax.custom_vjp
    def summed(x):
        return _summed(blocks, places, seeds, x)

    def backward(dtype, tables):
        return (transpose(blocks, places, seeds, tables).astype(dtype.dtype),)

    summed.defvjp(lambda x: (summed(x), jnp.zeros(0, x.dtype)), backward)
    return summed(x)


def transpose(blocks: Blocks, places, seeds, tables: jax.Array) -> jax.Array:
    """Returns for every coordinate the sum of its buckets, with its signs."""

    @jax.custom_vjp
    def read(tables):
        return _read(blocks, places, seeds, tables, sum)

    read.defvjp(
        lambda tables: (read(tables), None),
        lambda _, x: (apply(blocks, places, seeds, x),),
    )
    return read(tables)


def estimate(
    blocks: Blocks, places, seeds, tables: jax.Array, reduce: Callable
) -> jax.Array:
    """Returns for every coordinate `reduce` of the list of its signed buckets.

    Its gradient is that of the sums of each row by itself.
    """

    @jax.custom_vjp
    def estimated(tables):
        return _read(blocks, places, seeds, tables, reduce)

    def row_by_row(tables):
        one = blocks._replace(rows=1)
        return reduce(
            [
                transpose(
                    one._replace(signs=_of_term(blocks.signs, row)),
                    places[:, row : row + 1],
                    seeds,
                    tables[row : row + 1],
                )
                for row in range(blocks.rows)
            ]
        )

    estimated.defvjp(
        lambda tables: (estimated(tables), tables),
        lambda tables, x: jax.vjp(row_by_row, tables)[1](x),
    )
    return estimated(tables)


def _of_term(signs: Signs, term: int) -> Signs:
    return signs._replace(mask=lambda seeds, index, _: signs.mask(seeds, index, term))


def _summed(blocks: Blocks, places, seeds, x) -> jax.Array:
    passes = [
        _Pass(blocks, range(blocks.rows)[row : row + ROWS])
        for row in range(0, blocks.rows, ROWS)
    ]
    return jnp.concatenate([one.sums(places, seeds, x) for one in passes])


class _Pass(NamedTuple):
    """A pass over a vector for some rows of a message.

    Programs have a block of buckets and a share of the tiles each. Partial sums of the
    shares are added up at the end.
    """

    blocks: Blocks
    rows: range

    @property
    def block(self) -> int:
        """The number of buckets of a program."""
        return _power(self.blocks.cols)

    @property
    def across(self) -> int:
        """The number of blocks of buckets."""
        return -(-self.blocks.cols // self.block)

    @property
    def whole(self) -> int:
        """The number of tiles of full length."""
        return self.blocks.d // self.blocks.tile

    @property
    def each(self) -> int:
        """The number of tiles of a share."""
        shares = min(PROGRAMS // self.across, self.whole // UNROLLED)
        return -(-self.whole // max(1, shares))

    def sums(self, places, seeds, x) -> jax.Array:
        """Returns the rows of the message."""
        shares = -(-self.whole // self.each)
        shape = shares, len(self.rows), self.blocks.cols
        options = _options(self.blocks, self.block)
        grid, draws = (self.across, shares), (places, seeds)
        sums = launch(self.kernel, x, *draws, shape=shape, grid=grid, **options)
        return sums.sum(0) if shares > 1 else sums[0]

    def kernel(self, x_ref, places_ref, seeds_ref, out_ref) -> None:
        """Adds up a share of the tiles for a block of buckets."""
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import triton

        d, cols, tile = self.blocks.d, self.blocks.cols, self.blocks.tile
        place = pl.program_id(0) * self.block + lax.iota(jnp.int32, self.block)
        bucket = jnp.minimum(place, cols - 1)  # the last block reads some twice
        read = functools.partial(self.tile, x_ref, places_ref, _words(seeds_ref))
        short = (lambda at: at < tile) if tile < cols else None
        share, last = pl.program_id(1), d % tile
        begin = share * self.each
        tiles = jnp.minimum(self.whole - begin, self.each)

        def step(number, sums, count):
            for ahead in range(count):
                which = begin + number * count + ahead
                sums = _added(sums, read(bucket, which, which * tile, short))
            return sums

        def ends(at):
            """Returns which coordinates are those of the last, shorter tile."""
            ours = pl.program_id(1) == pl.num_programs(1) - 1
            return (at >= tile - last) & (at < tile) & ours

        sums = tuple(jnp.zeros(self.block, jnp.float32) for _ in self.rows)
        several, single = (functools.partial(step, count=n) for n in (UNROLLED, 1))
        sums = lax.fori_loop(0, tiles // UNROLLED, several, sums)
        sums = lax.fori_loop(tiles // UNROLLED * UNROLLED, tiles, single, sums)
        if last:
            sums = _added(sums, read(bucket, self.whole, d - tile, ends))
        for number, total in enumerate(sums):
            out = out_ref.at[share, number, place]
            triton.store(out, total, mask=place < cols)

    def tile(self, x_ref, places_ref, seeds, bucket, tile, first, inside):
        """Returns what a tile adds to buckets, for each row.

        Args:
          tile: its number.
          first: its first coordinate.
          inside: which of its coordinates count, by their place in it; None: all.
        """
        from jax.experimental.pallas import triton

        per_row, cols = self.blocks.per_row, self.blocks.cols
        rows = []
        for row in self.rows:
            values = []
            for term in range(row * per_row, (row + 1) * per_row):
                offset = places_ref[tile, term]
                begin = first - offset
                index = bucket + jnp.where(bucket < offset, begin + cols, begin)
                mask = inside and inside(index - first)
                value = triton.load(x_ref.at[index], mask=mask, other=inside and 0)
                sign = self.blocks.signs.mask(seeds, index.astype(jnp.uint32), term)
                values.append(flip(value, sign))
            rows.append(functools.reduce(jnp.add, values))
        return tuple(rows)


def _added(sums: tuple, more: tuple) -> tuple:
    return tuple(map(jnp.add, sums, more))


def _read(blocks: Blocks, places, seeds, tables, reduce: Callable) -> jax.Array:
    """Returns `reduce` of the signed buckets of every coordinate, in one pass."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    tile, tiles = blocks.tile, -(-blocks.d // blocks.tile)
    # Programs that read the same buckets of a long row follow each other.
    by_bucket = blocks.terms == 1 and blocks.cols >= LONG_ROW
    block = _power(tile)
    across = -(-(blocks.cols if by_bucket else tile) // block)

    def kernel(tables_ref, places_ref, seeds_ref, out_ref):
        program, seeds = pl.program_id(0), _words(seeds_ref)
        fastest = jnp.int32(tiles if by_bucket else across)
        slow, fast = lax.div(program, fastest), lax.rem(program, fastest)
        number, part = (fast, slow) if by_bucket else (slow, fast)
        first = jnp.minimum(number * tile, blocks.d - tile)
        place = part * block + lax.iota(jnp.int32, block)
        if by_bucket:
            bucket, offset = place, places_ref[number, 0]
            place = jnp.where(bucket < offset, bucket + blocks.cols, bucket) - offset
            place = jnp.where(bucket < blocks.cols, place, blocks.d)
        inside = (place < tile) & (first + place >= number * tile)
        index = first + place
        values = []
        for term in range(blocks.terms):
            bucket = place + places_ref[number, term]
            bucket = jnp.where(bucket >= blocks.cols, bucket - blocks.cols, bucket)
            row = tables_ref.at[term // blocks.per_row, bucket]
            value = triton.load(row, mask=inside, other=0)
            mask = blocks.signs.mask(seeds, index.astype(jnp.uint32), term)
            values.append(flip(value, mask))
        triton.store(out_ref.at[index], reduce(values), mask=inside)

    options = _options(blocks, block)
    shape, grid = (blocks.d,), (tiles * across,)
    return launch(kernel, tables, places, seeds, shape=shape, grid=grid, **options)


def _words(seeds_ref: Any) -> Any:
    """Returns the words of a family of signs as scalars of a kernel."""
    if len(seeds_ref.shape) == 1:
        return [seeds_ref[k] for k in range(seeds_ref.shape[0])]
    count, words = seeds_ref.shape
    return [[seeds_ref[k, w] for w in range(words)] for k in range(count)]


def _options(blocks: Blocks, block: int) -> dict[str, Any]:
    """Returns options of `launch` for programs of so many buckets or coordinates."""
    warps = max(1, min(8, block // (4 * THREADS)))
    return {"warps": warps, "interpret": blocks.interpret}


def _power(size: int) -> int:
    """Returns the length of the blocks of an axis: a power of two."""
    return min(BLOCK, max(THREADS, 1 << (size - 1).bit_length()))
