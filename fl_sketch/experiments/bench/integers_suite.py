"""Integer noise and masked sums: what they cost, and whether the noise has its moments.

Noise is drawn with the random bits of a ChaCha12 key, as in private runs, in one
program. Its moments are those of all draws. Where OpenDP is installed, its sampler
of discrete Gaussians is measured in the same way. A masked sum has all its parties in
one process, which takes part for everyone.
"""

import functools
import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import jax
import numpy as np

from fl_sketch import network
from fl_sketch.core import chacha
from fl_sketch.experiments.measurements import Column, Table
from fl_sketch.privacy import integer_noise, integer_tables, lattice

DEVIATIONS = (0.7, 10.0, 100.0, 1000.0, 10000.0)
DRAWS, TIMES = 10**7, 5
FEW = 10**5  # draws of a slow sampler
CLIENTS, LENGTH, BITS = 100, 10**5, 16


class Row(NamedTuple):
    """A sampler, or a sum.

    Attributes:
      what: "skellam", "discrete_gaussian", "opendp discrete_gaussian"; "masked sum".
      numbers: how many are drawn, or the numbers of a message.
      seconds: the median of `TIMES` calls; of a sum or a slow sampler, of one.
      nanoseconds: for each number.
      variance: that of the draws, over the exact one.
      fourth: the mean of fourth powers, over the exact one.
      bytes_up, bytes_down: of all clients of a sum.
    """

    what: Annotated[str, Column("24")]
    deviation: Annotated[float | None, Column("9g")]
    numbers: Annotated[int, Column("10,d")]
    seconds: Annotated[float, Column("8.3f")]
    nanoseconds: Annotated[float | None, Column("8.2f", "ns each")] = None
    variance: Annotated[float | None, Column("8.5f")] = None
    fourth: Annotated[float | None, Column("8.5f")] = None
    clients: Annotated[int | None, Column("7d")] = None
    bytes_up: Annotated[int | None, Column("12,d")] = None
    bytes_down: Annotated[int | None, Column("12,d")] = None


TABLE = Table.of(Row)


def run() -> Iterator[Row]:
    """Yields rows of all samplers, and of a masked sum."""
    for kind, deviation in itertools.product(lattice.KINDS, DEVIATIONS):
        yield _of_ours(kind, deviation)
    if importlib.util.find_spec("opendp"):
        for deviation in DEVIATIONS:
            drawn = functools.partial(_of_opendp, deviation, FEW)
            name = "opendp discrete_gaussian"
            yield _row(name, "discrete_gaussian", deviation, drawn, FEW, 1)
    yield _of_sum()


def _of_ours(kind: str, deviation: float) -> Row:
    draw = jax.jit(lambda key: integer_noise.noise(key, (DRAWS,), kind, deviation**2))
    secret = chacha.key_of(bytes(chacha.KEY_BYTES))
    keys = iter(jax.random.split(secret, TIMES + 1))
    jax.block_until_ready(draw(next(keys)))

    def drawn() -> jax.Array:
        return jax.block_until_ready(draw(next(keys)))

    return _row(kind, kind, deviation, drawn, DRAWS, TIMES)


def _of_opendp(deviation: float, count: int) -> np.ndarray:
    import opendp.prelude as dp  # pyright: ignore[reportMissingImports]

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i32")), dp.l2_distance(T=float)
    return np.array(dp.m.make_gaussian(*space, scale=deviation)([0] * count))


def _row(
    what: str,
    kind: str,
    deviation: float,
    drawn: Callable[[], np.ndarray | jax.Array],
    count: int,
    times: int,
) -> Row:
    """Returns the row of a sampler that draws so many numbers so many times."""
    spent, second, fourth = [], [], []
    for _ in range(times):
        begin = time.perf_counter()
        numbers = drawn()
        spent.append(time.perf_counter() - begin)
        squares = np.asarray(numbers, np.float64) ** 2
        second.append(squares.mean())
        fourth.append((squares**2).mean())
    chances = np.array(integer_tables.weights(kind, deviation**2), np.float64)
    mass = chances / chances.sum()
    places = np.arange(len(mass), dtype=np.float64) ** 2
    seconds = statistics.median(spent)
    return Row(
        what,
        deviation,
        count,
        seconds,
        1e9 * seconds / count,
        float(np.mean(second) / (mass @ places)),
        float(np.mean(fourth) / (mass @ places**2)),
    )


def _of_sum() -> Row:
    """Returns the row of a masked sum in which no client drops out."""
    rng = np.random.default_rng(0)
    messages = {
        client: rng.integers(0, 2**BITS, LENGTH).astype(np.uint32)
        for client in range(CLIENTS)
    }
    begin = time.perf_counter()
    done = network.masked(length=LENGTH, bits=BITS).sum(messages, round=0)
    spent = time.perf_counter() - begin
    counted = {"bytes_up": done.bytes_up, "bytes_down": done.bytes_down}
    return Row("masked sum", None, LENGTH, spent, clients=CLIENTS, **counted)
