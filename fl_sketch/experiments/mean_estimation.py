"""The error of a mean that integers make, by their noise and their bits.

Vectors of length one on a sphere, one of each client; all clients take part once. The
error is that of what the mechanism releases, whose clients add their own noise, over
that of the Gaussian mechanism with the same promise and the same accountant. This is
the experiment of Kairouz, Liu and Steinke (2021), section 5.1, and of Agarwal, Kairouz
and Liu (2021), section 5.1, for clients whose data are replaced.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import chacha, validate
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Mechanism, Roots
from fl_sketch.engine.clients import zeros
from fl_sketch.experiments.measurements import Column, Table
from fl_sketch.privacy import accounting, bits_table, clipping, lattice, mechanism
from fl_sketch.privacy.plans import Plan

GAUSSIAN = "gaussian"
AT_ONCE = 2**16  # numbers of clients that are encoded together


class Row(NamedTuple):
    """The error of one mechanism.

    Attributes:
      noise: the kind of noise.
      bits: the bits of a number; 32: floats.
      noise_multiplier: None: so few bits keep no such promise.
      error: the mean over coordinates and repetitions of the squared error of a mean.
      over_gaussian: the error over that of Gaussian noise on floats.
      counted: the same as it follows from the noise, and a quarter of a step's square
        for each client's rounding.
      wraps: the share of numbers that wrapped around.
      bytes_up: the bytes of a client's message.
    """

    clients: Annotated[int, Column("8")]
    epsilon: Annotated[float, Column("8g")]
    noise: Annotated[str, Column("18")]
    bits: Annotated[int, Column("5")]
    noise_multiplier: Annotated[float | None, Column("9.4f", "z")]
    error: Annotated[float | None, Column("10.4g")]
    over_gaussian: Annotated[float | None, Column("10.4f", "/ gaussian")]
    counted: Annotated[float | None, Column("8.4f")]
    wraps: Annotated[float | None, Column("9.2g")]
    bytes_up: Annotated[int, Column("8", "bytes up")]


TABLE = Table.of(Row)


def run(
    clients: Sequence[int],
    bits: Sequence[int],
    epsilons: Sequence[float],
    *,
    numbers: int,
    delta: float,
    releases: int,
    seed: int = 0,
) -> Iterator[Row]:
    """Yields the rows of the table, floats first.

    Args:
      clients: numbers of clients.
      bits: bits of a number.
      epsilons: the epsilons of promises.
      numbers: the length of a vector.
      delta: the delta of all promises.
      releases: how often each mean is released: the repetitions.
      seed: the seed of vectors and noise.

    Raises:
      ValueError: in one line, for what cannot be.
    """
    validate.at_least_one(numbers=numbers, releases=releases)
    for count in clients:
        validate.at_least_one(clients=count)
    for each in bits:
        lattice.require(lattice.Integers(each, 1), 0.0)
    for count in clients:
        task = Task(_vectors(seed, count, numbers), delta, releases, seed)
        for epsilon in epsilons:
            yield from _of_promise(task, epsilon, bits)


class Task(NamedTuple):
    """What is estimated, and how often.

    Attributes:
      vectors: one of each client, float32 [clients, numbers].
    """

    vectors: np.ndarray
    delta: float
    releases: int
    seed: int


def _of_promise(task: Task, epsilon: float, bits: Sequence[int]) -> Iterator[Row]:
    """Yields the rows of one promise."""
    count, numbers = task.vectors.shape
    promise = {"epsilon": epsilon, "delta": task.delta, "accountant": "rdp"}
    plan = Plan(1, count, count, "everyone", relation="replace_one")
    plan = plan._replace(coordinates=numbers, shares=count)
    common: dict[str, Any] = {"denominator": count, "smallest": count}
    bound, (z, unit) = clipping.clip(1.0), (0.0, 0.0)
    for accountant, name in (("rdp", GAUSSIAN), ("pld", f"{GAUSSIAN}, by pld")):
        noise = accounting.calibrate(plan, **promise | {"accountant": accountant})
        guard = mechanism.distributed(bound, noise_multiplier=noise, **common)
        error, _ = _error(guard, task)
        z, unit, size = z or noise, unit or error, bits_table.FLOAT_BYTES * numbers
        counted = (noise / z) ** 2
        yield Row(
            *(count, epsilon, name, 32),
            *(noise, error, error / unit, counted, 0.0, size),
        )
    for kind, each in itertools.product(lattice.KINDS, bits):
        sums = bits_table.integers_of(plan, each)
        own = bits_table.with_integers(plan, sums, kind, numbers)
        known, size = (count, epsilon, kind, each), sums.bytes_up(numbers)
        try:
            noise = accounting.calibrate(own, **promise)
        except ValueError:
            yield Row(*known, None, None, None, None, None, size)
            continue
        guard = mechanism.integers(
            bound, noise_multiplier=noise, bits=each, noise=kind, **common
        )
        error, wraps = _error(guard, task)
        counted = (bits_table.error_of(own, noise) / z) ** 2
        yield Row(*known, noise, error, error / unit, counted, wraps, size)


def _vectors(seed: int, clients: int, numbers: int) -> np.ndarray:
    """Returns points on the unit sphere, float32 [clients, numbers]."""
    points = np.random.default_rng(seed).normal(size=(clients, numbers))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def _error(guard: Mechanism, task: Task) -> tuple[float, float]:
    """Returns the mean squared error of released means, and the share of wraps."""
    vectors, (clients, numbers) = task.vectors, task.vectors.shape
    true = vectors.mean(0, dtype=np.float64).astype(np.float32)
    most = max(1, min(clients, AT_ONCE // numbers))
    chunk = next(size for size in range(most, 0, -1) if clients % size == 0)
    blocks = vectors.reshape(-1, chunk, numbers)
    ids, seed = np.arange(clients).reshape(-1, chunk), task.seed
    roots = Roots(jax.random.key(seed), chacha.key_of(seed.to_bytes(chacha.KEY_BYTES)))

    def once(number, blocks):
        def one(client, message):
            keys = round_keys(roots, number, client)
            return guard.encode((), 0, message, keys).summand

        def block(total, given):
            each = jax.vmap(one)(*given)
            add = lambda t, x: t + jnp.sum(x, 0, dtype=x.dtype)  # noqa: E731
            return jax.tree.map(add, total, each), None

        shapes = jax.eval_shape(one, ids[0, 0], vectors[0])
        total, _ = jax.lax.scan(block, zeros(shapes), (ids, blocks))
        release = guard.release((), 0, total, round_keys(roots, number, 0))
        wraps = release.facts.get("wraps", jnp.float32(0))
        return jnp.mean((release.mean - true) ** 2), wraps

    # As a constant, the vectors would be worked on while XLA compiles, for minutes.
    of_all = jax.jit(lambda each, x: jax.lax.map(lambda n: once(n, x), each))
    errors, wraps = of_all(jnp.arange(task.releases), blocks)
    length = lattice.padded(numbers)
    return float(np.mean(errors)), float(np.mean(wraps)) / length
