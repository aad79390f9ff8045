"""Measures clipping where gradients have heavy tails, for SAFL and for SGD.

python -m experiments.heavy_tails --workdir=/tmp/heavy_tails

All clients have the loss sum_i q_i x_i^2 / 2 and the minimum 0. The gradient of a local
step has noise, Student's t, whose moments exist below the order `tail` only, as Chen et
al. assume in their section on heavy tails. Below 2 its variance is infinite. SAFL runs
with and without clipping of the clients' updates, and a server that takes plain steps
(SGD) runs for comparison. The paper does not print the clipped form; see
`algorithms.safl`.

A row of heavy_tails.csv is a method at the rate and the threshold that are best on
other runs: the final loss over the initial, its median and 0.95 quantile over runs.
There the noise of a step is long or short as a whole. controls.csv has noise that is
heavy in each coordinate by itself, clients whose minima differ, and either noise at the
typical length of the other.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags

from experiments import toy
from fl_sketch import algorithms, sketch, transforms
from fl_sketch.core import files

MINUTES = 40

SERVERS = {"sgd": optax.sgd, "amsgrad": transforms.paper_amsgrad}
CLIENTS, STEPS, CLIENT_RATE = 10, 2, 0.1
RATES = {  # of the servers
    "sgd": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "amsgrad": (0.001, 0.003, 0.01, 0.03, 0.1),
}
CLIPS = (0.0, 0.3, 1.0, 3.0, 10.0)  # 0: none
HIGH = 0.95  # the quantile of runs


def one_length(key: jax.Array, tail: float, shape: tuple[int, int]) -> jax.Array:
    """Returns Student's t for local steps, shape=(steps, d): one length for a step."""
    direction, length = jax.random.split(key)
    normal = jax.random.normal(direction, shape)
    chi = jax.random.gamma(length, tail / 2, (shape[0], 1)) * 2
    return normal * jnp.sqrt(tail / chi)


def each_coordinate(key: jax.Array, tail: float, shape: tuple[int, int]) -> jax.Array:
    """Returns independent numbers of Student's t, by Bailey's polar method (1994)."""
    first, second = jax.random.uniform(key, (2, *shape))
    radius = jnp.sqrt(tail * ((1 - first) ** (-2 / tail) - 1))
    return radius * jnp.cos(2 * jnp.pi * second)


NOISES = {"one length": one_length, "each coordinate": each_coordinate}


def typical_length(noise: str, tail: float, d: int) -> float:
    """Returns the median length of the noise of a step, of 10,000."""
    drawn = NOISES[noise](jax.random.key(0), tail, (10_000, d))
    return float(jnp.median(jnp.linalg.norm(drawn, axis=1)))


def quantile(found: np.ndarray) -> np.ndarray:
    """Returns the high quantile over the last axis; runs that diverge are infinite."""
    return np.quantile(found, HIGH, axis=-1, method="higher")


def measure(
    servers,
    sizes,
    *,
    d=200,
    tail,
    rounds,
    runs=40,
    noise="one length",
    scale=1.0,
    apart=0.0,
):
    """Yields a row for each server and size of a message, clipped and not.

    Args:
      servers: some of `SERVERS`.
      sizes: the numbers of a message; d is no sketch.
      runs: the number of runs of which quantiles are taken, and of which others choose
        the rate and the threshold.
      noise: one of `NOISES`.
      scale: by which the noise is multiplied.
      apart: the deviation of the minima of most clients from 0, the minimum of their
        mean; those of each client are longer than those of the one before.
    """
    curvatures = jnp.geomspace(0.1, 1.0, d)
    lengths = apart * np.geomspace(0.5, 2.0, CLIENTS)[:, None]
    optima = lengths * np.random.default_rng(0).normal(size=(CLIENTS, d))
    optima = jnp.asarray(optima - optima.mean(0), jnp.float32)
    task = toy.Quadratics(jnp.tile(curvatures, (CLIENTS, 1)), optima)

    def left(op, server, rate, threshold, key):
        """Returns the final excess of a run over the initial."""
        algorithm = algorithms.safl(
            toy.noisy(task.loss),
            sketch=op,
            client_rate=CLIENT_RATE,
            server=SERVERS[server](rate),
            client_clip=threshold,
        )
        options = {"steps": STEPS, "clients": CLIENTS, "chunk": CLIENTS}
        run = jnp.ones(d), key, jnp.zeros(rounds), lambda *_: None
        draw = lambda key: scale * NOISES[noise](key, tail, (STEPS, d))  # noqa: E731
        end, _ = toy.trajectory(lambda _: algorithm, *run, noise=draw, **options)
        return jnp.sum(curvatures * end.server.params**2) / jnp.sum(curvatures)

    choosing, reporting = jax.random.split(jax.random.key(0), (2, runs))
    for server, count in itertools.product(servers, sizes):
        op = sketch.count_sketch(count) if count < d else sketch.identity()
        of_runs = _of_runs(functools.partial(left, op, server))
        rates = RATES[server]
        grid = [[of_runs(rate, clip, choosing) for clip in CLIPS] for rate in rates]
        high = quantile(np.stack(grid))
        for clipped, some in {"no": slice(0, 1), "yes": slice(1, None)}.items():
            best = np.unravel_index(np.argmin(high[:, some]), high[:, some].shape)
            rate, threshold = rates[best[0]], CLIPS[some][best[1]]
            mine = of_runs(rate, threshold, reporting)
            yield {
                "tail": tail,
                "server": server,
                "numbers": count,
                "clipped": clipped,
                "rounds": rounds,
                "rate": rate,
                "threshold": threshold,
                "median": float(np.median(mine)),
                "high": float(quantile(mine)),
            }


def _of_runs(left):
    """Returns `(rate, threshold, keys) -> losses`; of runs that diverge, infinite."""
    compiled = jax.jit(jax.vmap(left, (None, None, 0)))

    def of_runs(rate, threshold, keys) -> np.ndarray:
        found = compiled(jnp.float32(rate), jnp.float32(threshold), keys)
        return np.where(np.isfinite(found), found, np.inf)

    return of_runs


def main(workdir: str, only: str):
    """Measures 200 parameters and sketches of 20 numbers, by 40 runs a method."""
    folder = files.writable_folder(workdir)
    if only != "controls":
        rows = (
            row
            for tail in (3.0, 1.5, 1.2)
            for rounds in (100, 400)
            for row in measure(tuple(RATES), (200, 20), tail=tail, rounds=rounds)
        )
        toy.record(rows, folder / "heavy_tails.csv")
    lengths = {
        (noise, tail): typical_length(noise, tail, 200)
        for noise, tail in itertools.product(NOISES, (3.0, 1.2))
    }
    short, long = lengths["one length", 1.2], lengths["each coordinate", 1.2]
    harder = [
        ("each coordinate", 3.0, lengths["each coordinate", 3.0], 0.0),
        ("each coordinate", 1.2, long, 0.0),
        ("one length", 3.0, lengths["one length", 3.0], 1.0),
        ("one length", 1.2, short, 1.0),
        ("each coordinate", 3.0, lengths["each coordinate", 3.0], 1.0),
        ("each coordinate", 1.2, long, 1.0),
        ("one length", 1.2, long, 0.0),
        ("each coordinate", 1.2, short, 0.0),
        ("each coordinate", 3.0, long, 0.0),
        ("each coordinate", 3.0, short, 0.0),
    ]
    rows = (
        {"noise": noise, "length": length, "apart": apart} | row
        for noise, tail, length, apart in harder
        for row in measure(
            ("amsgrad",),
            (20,),
            tail=tail,
            rounds=400,
            noise=noise,
            scale=length / lengths[noise, tail],
            apart=apart,
        )
    )
    toy.record(rows, folder / "controls.csv")


if __name__ == "__main__":
    from launch import command

    WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the csv files.")
    ONLY = flags.DEFINE_enum("only", "", ["", "controls"], "The one table to make.")
    flags.mark_flag_as_required("workdir")
    command.run(lambda: main(WORKDIR.value, ONLY.value))
