"""Measures the error of private means of integers, against Gaussian noise on floats.

python -m experiments.means --workdir=/tmp/means

Vectors of length one on a sphere, one of each client; all clients take part once and
each add a share of Skellam noise. The error is that of what the mechanism releases,
over that of the Gaussian mechanism with the same promise and the same accountant. This
is the experiment of Agarwal, Kairouz and Liu (2021), section 5.1, for clients whose
data are replaced.

A row of means.csv is a number of clients, an epsilon, a kind of noise and the bits of a
number (32: floats): `error` is the mean squared error, `counted` what follows for
`over_gaussian` from the noise and a quarter of a step's square for each client's
rounding, `wraps` the share of numbers that wrapped around, and nothing stands where so
few bits keep no such promise.
"""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import toy
from fl_sketch.core import chacha, files
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Mechanism, Roots
from fl_sketch.engine.clients import zeros
from fl_sketch.privacy import accounting, clipping, lattice, mechanism
from fl_sketch.privacy.accounting import Plan

MINUTES = 10

AT_ONCE = 2**16  # numbers of clients that are encoded together


def measure(
    clients: int,
    epsilon: float,
    bits: Sequence[int],
    *,
    numbers: int = 250,
    delta: float = 1e-5,
    releases: int = 400,
) -> Iterator[dict]:
    """Yields the rows of one promise, floats first."""
    points = np.random.default_rng(0).normal(size=(clients, numbers))
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    vectors = (points / lengths).astype(np.float32)
    promise = {"epsilon": epsilon, "delta": delta}
    plan = Plan(1, clients, clients, "everyone", relation="replace_one")
    plan = plan._replace(coordinates=numbers)
    bound, z, unit = clipping.clip(1.0), np.nan, np.nan

    def row(kind, each, z=None, error=None, counted=None, wraps=None, *, size):
        return {
            "clients": clients,
            "epsilon": epsilon,
            "noise": kind,
            "bits": each,
            "noise_multiplier": z,
            "error": error,
            "over_gaussian": None if error is None else error / unit,
            "counted": counted,
            "wraps": wraps,
            "bytes_up": size,
        }

    for accountant, name in (("rdp", "gaussian"), ("pld", "gaussian, by pld")):
        noise = accounting.calibrate(plan, accountant=accountant, **promise)
        guard = mechanism.central(bound, noise_multiplier=noise, denominator=clients)
        error, _ = error_of(guard, vectors, releases)
        if accountant == "rdp":
            z, unit = noise, error
        yield row(name, 32, noise, error, (noise / z) ** 2, 0.0, size=4 * numbers)
    for each in bits:
        sums = lattice.Integers(each, clients, clients).of((numbers,))
        size, own = sums.bytes_up(numbers), plan._replace(integers=sums)
        try:
            noise = accounting.calibrate(own, accountant="rdp", **promise)
        except ValueError:
            yield row("skellam", each, size=size)
            continue
        common = {"denominator": clients, "smallest": clients, "bits": each}
        guard = mechanism.integers(bound, noise_multiplier=noise, **common)
        error, wraps = error_of(guard, vectors, releases)
        counted = (lattice.deviation(sums, noise, clients) / z) ** 2
        yield row("skellam", each, noise, error, counted, wraps, size=size)


def error_of(
    guard: Mechanism, vectors: np.ndarray, releases: int
) -> tuple[float, float]:
    """Returns the mean squared error of released means, and the share of wraps."""
    clients, numbers = vectors.shape
    true = vectors.mean(0, dtype=np.float64).astype(np.float32)
    most = max(1, min(clients, AT_ONCE // numbers))
    chunk = next(size for size in range(most, 0, -1) if clients % size == 0)
    blocks = vectors.reshape(-1, chunk, numbers)
    ids = np.arange(clients).reshape(-1, chunk)
    roots = Roots(jax.random.key(0), chacha.key_of(bytes(chacha.KEY_BYTES)))

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
    errors, wraps = of_all(jnp.arange(releases), blocks)
    length = lattice.padded(numbers)
    return float(np.mean(errors)), float(np.mean(wraps)) / length


def main(workdir: str):
    """Measures 100 and 1000 clients, at three epsilons and five sizes of integers."""
    path = files.writable_folder(workdir) / "means.csv"
    rows = (
        row
        for clients in (100, 1000)
        for epsilon in (1.0, 4.0, 10.0)
        for row in measure(clients, epsilon, (10, 12, 14, 16, 18))
    )
    toy.record(rows, path)


if __name__ == "__main__":
    from launch import command

    WORKDIR = flags.DEFINE_string("workdir", None, "Folder for means.csv.")
    flags.mark_flag_as_required("workdir")
    command.run(lambda: main(WORKDIR.value))
