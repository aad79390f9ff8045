"""What FedSKETCH's compressors lose, measured, beside what the paper says.

Two numbers are measured for a vector x. One is `E|C(x) - x|^2 / |x|^2` over hashes,
beside mu^2 d with mu^2 = e / m (Property 2 for PRIVIX; Corollary 1 has mu^2 d - 1 for
HEAPRIX). The other is the mean of `(C(x) - x).x / |x|^2`, in standard errors, which is
zero if C is unbiased.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch import channels, sketch
from fl_sketch.channels import player
from fl_sketch.core import validate
from fl_sketch.core.protocols import Channel, Keys

D = 61_706  # of LeNet-5, as in the paper's experiments
SIZES = ((5, 2000), (20, 40), (50, 100))  # rows, columns
VECTORS = {
    "power law": lambda key: _signs(key) / jnp.arange(1.0, D + 1),
    "dense": lambda key: jax.random.normal(key, (D,)),
}
CHANNELS = {
    "privix": lambda op, m: channels.sketched(op),
    "heaprix": channels.heaprix,
    "heaprix fresh": functools.partial(channels.heaprix, values="fresh"),
    "heaprix estimated": functools.partial(channels.heaprix, values="estimated"),
}


class Row(NamedTuple):
    """One line of the table.

    Attributes:
      channel: one of `CHANNELS`, what makes C.
      vector: one of `VECTORS`, x.
      d: the length of the vector.
      rows: the number of rows of the count sketch.
      cols: the number of its columns.
      numbers: the number of numbers sent, exact values included.
      error: `E|C(x) - x|^2 / |x|^2`.
      bound: the paper's bound on it.
      bias: the mean error along x, as a part of x.
      standard_errors: the bias over its standard error.
    """

    channel: str
    vector: str
    d: int
    rows: int
    cols: int
    numbers: int
    error: float
    bound: float
    bias: float
    standard_errors: float


def run(draws: int) -> Iterator[Row]:
    """Yields the rows of the table.

    Args:
      draws: the number of draws of hashes.
    """
    validate.at_least_one(draws=draws)
    for (rows, cols), vector, name in itertools.product(SIZES, VECTORS, CHANNELS):
        op = sketch.count_sketch(cols, rows)
        x = VECTORS[vector](jax.random.key(0))
        yield _row(name, CHANNELS[name](op, cols), vector, x, rows, cols, draws)


def _row(name, channel: Channel, vector, x, rows, cols, draws) -> Row:
    norm2 = jnp.sum(x**2)

    @jax.jit
    def measure(key):
        keys = Keys(key, key, key)
        gap = player.single_client(channel, x, keys).delivery.estimate - x
        return jnp.sum(gap**2) / norm2, gap @ x / norm2

    found = [measure(key) for key in jax.random.split(jax.random.key(1), draws)]
    energy, along = (jnp.stack(values) for values in zip(*found, strict=True))
    spread = float(along.std()) / math.sqrt(draws)
    exact = {"heaprix": cols, "heaprix fresh": (rows + 1) * cols}.get(name, 0)
    return Row(
        channel=name,
        vector=vector,
        d=D,
        rows=rows,
        cols=cols,
        numbers=rows * cols + exact,
        error=float(energy.mean()),
        bound=math.e * D / cols - (name != "privix"),
        bias=float(along.mean()),
        standard_errors=abs(float(along.mean())) / spread if spread else 0.0,
    )


def _signs(key: jax.Array) -> jax.Array:
    return jax.random.rademacher(key, (D,)).astype(jnp.float32)


COLUMNS = "{:18} {:10} {:>5} {:>5} {:>8} {:>10} {:>10} {:>9} {:>6}"
HEAD = COLUMNS.format(
    "channel", "vector", "rows", "cols", "numbers", "error", "paper <=", "bias", "in se"
)  # fmt: skip


def line(row: Row) -> str:
    """Returns `row` as a line of the printed table."""
    return COLUMNS.format(
        row.channel, row.vector, row.rows, row.cols, row.numbers,
        f"{row.error:.4g}", f"{row.bound:.4g}", f"{row.bias:.4f}",
        f"{row.standard_errors:.1f}",
    )  # fmt: skip
