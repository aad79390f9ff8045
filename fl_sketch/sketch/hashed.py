"""Count sketches and sparse embeddings, at the speed of memory.

A count sketch adds every coordinate, with a random sign, to one bucket of each row. A
sparse embedding adds it to several. Both read x once, tile by tile (`buckets` places a
tile), and only need memory for the input and the message. On GPUs a blocked hash has
the kernels of `hashed_gpu`.

>>> import jax, jax.numpy as jnp
>>> from fl_sketch import sketch
>>> op, key = sketch.count_sketch(cols=40, rows=5), jax.random.key(0)
>>> spike = jnp.zeros(1000).at[77].set(3.0)
>>> message = op.apply(key, spike)
>>> message.shape, op.size()
((5, 40), 200)
>>> float(op.estimate(key, message, 1000)[77].round(4))
3.0
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core import validate
from fl_sketch.core.hashing import SIGNS, Signs, flip, mixer_signs
from fl_sketch.core.platforms import by_platform
from fl_sketch.core.protocols import Sketch
from fl_sketch.core.trees import varying_like
from fl_sketch.sketch import hashed_gpu
from fl_sketch.sketch.buckets import BUCKETS, Buckets
from fl_sketch.sketch.from_vector import on_trees
from fl_sketch.sketch.median import median

QUERIES = ("median", "mean")


def count_sketch(
    cols: int,
    rows: int = 1,
    *,
    hash: str = "blocked",  # noqa: A002, the word of the papers
    query: str = "median",
    signs: str = "mixer",
) -> Sketch:
    """Returns the count sketch: one signed bucket a coordinate in each of `rows` rows.

    The message has shape (rows, cols). R has entries +-1/sqrt(rows), so that
    E[R^T R] = I for any number of rows; `transpose` is the mean over rows of the usual
    estimates and `query="median"` their median, which is FedSKETCH's PRIVIX. The error
    of the mean is `E|R^T R x - x|^2 <= (d-1)/(rows cols) |x|^2`, with d - cols in place
    of d - 1 for the blocked hash when cols divides d.

    Args:
      cols: the number of buckets per row. More than d is allowed but wasteful.
      rows: independent repetitions. The guarantee of the median needs an odd number.
        For an even one it is the mean of the two in the middle.
      hash: "blocked" (fast, deterministic) or "independent" (a scatter).
      query: the reduction over the rows for `estimate`, "median" or "mean".
      signs: "mixer" (fast) or "polynomial" (exactly 4-wise independent).

    References: Charikar, Chen and Farach-Colton (2002); Song et al., Definition D.5;
    Haddadpour et al., Algorithms 1 and 2.
    """
    validate.at_least_one(cols=cols, rows=rows)
    validate.one_of(tuple(BUCKETS), hash=hash)
    validate.one_of(QUERIES, query=query)
    validate.one_of(tuple(SIGNS), signs=signs)

    def resize(numbers):
        fewer = max(1, numbers // rows)
        return count_sketch(fewer, rows, hash=hash, query=query, signs=signs)

    def median_of_rows(terms):
        return median(terms) * rows  # the terms are those of a mean

    form = _Form(hash, SIGNS[signs](), cols, rows, per_row=1)
    reduce = median_of_rows if query == "median" and rows > 1 else None
    return _hashed(form, (rows, cols), resize, reduce)


def sparse_embedding(
    b: int, nonzeros: int, *, kind: str = "replacement-free"
) -> Sketch:
    """Returns a map with `nonzeros` entries +-1/sqrt(nonzeros) in every column.

    The errors, for s nonzeros, come from `E|R^T R x - x|^2` = sum_i x_i^2 sum_{j != i}
    E<c_i, c_j>^2 over columns c (the diagonal of R^T R is 1). Two columns that share k
    places in independent positions have E<c_i, c_j>^2 = E[k]/s^2.

    - In different blocks E[k] = s s/b (kind I), or s s/b from s blocks of b/s
      places each met with probability s/b (kind II): 1/b for each pair;
    - within a block, kind II never meets; kind I meets where two different
      offsets differ by j - i, E[k] = s(s-1)/(b-1).

    In total, with b dividing d: (d-b)/b + (s-1)/s for kind I; with b/s dividing d:
    (d-b/s)/b for kind II. Both are below the (d-1)/b of independent columns.

    Args:
      b: the number of numbers in a message.
      nonzeros: at most b, and a divisor of b for "blocked".
      kind: "replacement-free" (Definition D.6, I): a column's entries are anywhere,
        without replacement. "blocked" (D.7, II): one in each of `nonzeros` blocks.

    Reference: Nelson and Nguyen (2013); Song et al., Definitions D.6 and D.7.
    """
    validate.at_least_one(b=b, nonzeros=nonzeros)
    validate.one_of(("replacement-free", "blocked"), kind=kind)
    validate.at_most(b, "one entry a place, b places", nonzeros=nonzeros)
    if kind == "blocked" and b % nonzeros:
        msg = f"Expected nonzeros to divide b={b} for blocks, got nonzeros={nonzeros}."
        raise ValueError(msg)
    rows, per_row = (nonzeros, 1) if kind == "blocked" else (1, nonzeros)

    def resize(numbers):
        fewer = min(nonzeros, numbers)
        whole = numbers - numbers % fewer if kind == "blocked" else numbers
        return sparse_embedding(whole, fewer, kind=kind)

    cols = b // rows
    return _hashed(_Form("blocked", mixer_signs(), cols, rows, per_row), (b,), resize)


class _Form(NamedTuple):
    """The parameters of a hashed map, with `terms` entries in every column."""

    hash: str
    signs: Signs
    cols: int
    rows: int
    per_row: int

    @property
    def terms(self) -> int:
        return self.rows * self.per_row

    @property
    def buckets(self) -> Buckets:
        return BUCKETS[self.hash](self.cols)

    def draw(self, key, d):
        """Returns (places of the tiles, seeds of the signs)."""
        key_places, key_signs = jax.random.split(key)
        places = self.buckets.draw(key_places, d, self.rows, self.per_row)
        return places, self.signs.seeds(key_signs, self.terms)

    def on_gpu(self, function: Callable, d: int, *more: Any) -> Callable | None:
        """Returns a function of `hashed_gpu` for this map; None: there is none."""
        if self.hash != "blocked":
            return None
        blocks = hashed_gpu.Blocks(self.signs, d, self.cols, self.rows, self.per_row)
        return lambda *draws_and_values: function(blocks, *draws_and_values, *more)


def _hashed(form: _Form, shape: tuple[int, ...], resize, reduce=None) -> Sketch:
    """Returns the Sketch of a form; `reduce` makes an estimate of the terms."""
    scale = math.sqrt(form.terms)

    def apply(key, x):
        fast = form.on_gpu(hashed_gpu.apply, x.size)
        draws = form.draw(key, x.size)
        loop = functools.partial(_apply, form)
        tables = by_platform(*draws, x, default=loop, cuda=fast)
        return (tables / scale).reshape(shape)

    def transpose(key, s, d):
        fast = form.on_gpu(hashed_gpu.transpose, d)
        return read(key, s, d, sum, fast)

    def estimate(key, s, d):
        fast = form.on_gpu(hashed_gpu.estimate, d, reduce)
        return read(key, s, d, reduce, fast)

    def read(key, s, d, reduce, fast):
        scaled = s.reshape(form.rows, -1) / scale
        loop = functools.partial(_read, form, d=d, reduce=reduce)
        return by_platform(*form.draw(key, d), scaled, default=loop, cuda=fast)

    return on_trees(
        shape=lambda d: shape,
        apply=apply,
        transpose=transpose,
        estimate=reduce and estimate,
        resize=resize,
    )


def _apply(form: _Form, places, seeds, x) -> jax.Array:
    """Returns the sums of the buckets, (rows, cols), of signed coordinates."""
    d, tile = x.size, form.buckets.tile(x.size)

    def put(tables, number, first, values):
        index = _index(first, tile)
        tables = list(tables)
        for term in range(form.terms):
            signed = flip(values, form.signs.mask(seeds, index, term))
            row = term // form.per_row
            tables[row] = form.buckets.add(
                tables[row], places, number, term, index, signed
            )
        return tuple(tables)

    def put_tile(number, tables):
        first = number * tile
        return put(tables, number, first, lax.dynamic_slice(x, (first,), (tile,)))

    table = varying_like(form.buckets.widen(jnp.zeros(form.cols)), x, places)
    tables = lax.fori_loop(0, d // tile, put_tile, (table,) * form.rows)
    if d % tile:
        # The rest is the end of a tile of zeros, since padding x would copy it.
        rest = x[d - tile :].at[: tile - d % tile].set(0)
        tables = put(tables, d // tile, d - tile, rest)
    return jnp.stack([form.buckets.fold(t) for t in tables])


def _read(form: _Form, places, seeds, scaled, *, d: int, reduce) -> jax.Array:
    """Returns `reduce` of the signed buckets of every coordinate.

    The last tile overlaps the one before it, so tiles are written last to first.
    """
    tile = form.buckets.tile(d)
    tables = [form.buckets.widen(row) for row in scaled]

    count = -(-d // tile)

    def write(step, x):
        number = count - 1 - step
        first = jnp.minimum(number * tile, d - tile)  # as `_apply` has it
        index = _index(first, tile)
        values = [
            flip(
                form.buckets.read(
                    tables[term // form.per_row], places, number, term, index
                ),
                form.signs.mask(seeds, index, term),
            )
            for term in range(form.terms)
        ]
        return lax.dynamic_update_slice(x, reduce(values), (first,))

    x = varying_like(jnp.zeros(d), scaled, places)
    return lax.fori_loop(0, count, write, x)


def _index(first, length) -> jax.Array:
    return jnp.asarray(first, jnp.uint32) + lax.iota(jnp.uint32, length)
