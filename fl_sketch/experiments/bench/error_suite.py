"""The measured errors of FedSKETCH's compressors, and the paper's bounds.

Two numbers are measured for a vector x. One is `E|C(x) - x|^2 / |x|^2` over hashes,
which the paper bounds by mu^2 d with mu^2 = e / m (Property 2) for PRIVIX, and by
mu^2 d - 1 (Corollary 1) for HEAPRIX. The other is the mean of `(C(x) - x).x / |x|^2`,
in standard errors, which is zero if C is unbiased.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch import channels, sketch
from fl_sketch.channels import player
from fl_sketch.core import validate
from fl_sketch.core.protocols import Keys
from fl_sketch.experiments.measurements import Column, Table

D = 61_706  # of LeNet-5, as in the paper's experiments
SIZES = ((5, 2000), (20, 40), (50, 100))  # rows, columns
VECTORS = {
    "power law": lambda key: (
        jax.random.rademacher(key, (D,), jnp.float32) / jnp.arange(1.0, D + 1)
    ),
    "dense": lambda key: jax.random.normal(key, (D,)),
}
CHANNELS = {
    "privix": lambda op, m: channels.sketched(op),
    "heaprix": channels.heaprix,
    "heaprix fresh": functools.partial(channels.heaprix, values="fresh"),
    "heaprix estimated": functools.partial(channels.heaprix, values="estimated"),
}


class Row(NamedTuple):
    """The errors of a compressor C on a vector x.

    Attributes:
      numbers: the numbers sent, exact values included.
      error: `E|C(x) - x|^2 / |x|^2`.
      bound: the paper's bound on it.
      bias: the mean error along x, as a part of x.
      standard_errors: the bias over its standard error.
    """

    channel: Annotated[str, Column("18")]
    vector: Annotated[str, Column("10")]
    d: int
    rows: Annotated[int, Column("5d")]
    cols: Annotated[int, Column("5d")]
    numbers: Annotated[int, Column("8d")]
    error: Annotated[float, Column("10.4g")]
    bound: Annotated[float, Column("10.4g", "paper <=")]
    bias: Annotated[float, Column("9.4f")]
    standard_errors: Annotated[float, Column("6.1f", "in se")]


TABLE = Table.of(Row)


def run(draws: int) -> Iterator[Row]:
    """Yields the rows of the table, means over so many draws of hashes."""
    validate.at_least_one(draws=draws)
    for (rows, cols), vector, name in itertools.product(SIZES, VECTORS, CHANNELS):
        yield _row(name, vector, rows, cols, draws)


def _row(name: str, vector: str, rows: int, cols: int, draws: int) -> Row:
    channel = CHANNELS[name](sketch.count_sketch(cols, rows), cols)
    x = VECTORS[vector](jax.random.key(0))
    norm2 = jnp.sum(x**2)

    @jax.jit
    def measure(key):
        keys = Keys(key, key, key)
        gap = player.single_client(channel, x, keys).delivery.estimate - x
        return jnp.sum(gap**2) / norm2, gap @ x / norm2

    measured = [measure(key) for key in jax.random.split(jax.random.key(1), draws)]
    energy, along = (jnp.stack(values) for values in zip(*measured, strict=True))
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
