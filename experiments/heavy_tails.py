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
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags

from experiments import toy
from fl_sketch import algorithms, sketch, transforms
from fl_sketch.core import files

MINUTES = 35

SERVERS = {"sgd": optax.sgd, "amsgrad": transforms.paper_amsgrad}
CLIENTS, STEPS, CLIENT_RATE = 10, 2, 0.1
RATES = {  # of the servers
    "sgd": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "amsgrad": (0.001, 0.003, 0.01, 0.03, 0.1),
}
CLIPS = (0.0, 0.3, 1.0, 3.0, 10.0)  # 0: none
HIGH = 0.95  # the quantile of runs


def students_t(key: jax.Array, tail: float, shape: tuple[int, int]) -> jax.Array:
    """Returns the noise of local steps, shape=(steps, d): one length for each step."""
    direction, length = jax.random.split(key)
    normal = jax.random.normal(direction, shape)
    chi = jax.random.gamma(length, tail / 2, (shape[0], 1)) * 2
    return normal * jnp.sqrt(tail / chi)


def quantile(found: np.ndarray) -> np.ndarray:
    """Returns the high quantile over the last axis; runs that diverge are infinite."""
    return np.quantile(found, HIGH, axis=-1, method="higher")


def measure(*, d: int, tail: float, rounds: int, numbers: int, runs: int):
    """Yields a row for each server, without a sketch and with one, clipped and not.

    Args:
      numbers: the numbers of a sketch.
      runs: the number of runs of which quantiles are taken, and of which others choose
        the rate and the threshold.
    """
    curvatures = jnp.geomspace(0.1, 1.0, d)
    task = toy.Quadratics(jnp.tile(curvatures, (CLIENTS, 1)), jnp.zeros((CLIENTS, d)))

    def left(op, server, rate, threshold, key):
        """Returns the final loss of a run over the initial."""
        algorithm = algorithms.safl(
            toy.noisy(task.loss),
            sketch=op,
            client_rate=CLIENT_RATE,
            server=SERVERS[server](rate),
            client_clip=threshold,
        )
        options = {"steps": STEPS, "clients": CLIENTS, "chunk": CLIENTS}
        run = jnp.ones(d), key, jnp.zeros(rounds), lambda *_: None
        noise = lambda key: students_t(key, tail, (STEPS, d))  # noqa: E731
        end, _ = toy.trajectory(lambda _: algorithm, *run, noise=noise, **options)
        return jnp.sum(curvatures * end.server.params**2) / jnp.sum(curvatures)

    keys = jax.random.split(jax.random.key(0), (2, runs))
    for server, rates in RATES.items():
        for count in (d, numbers):
            op = sketch.count_sketch(count) if count < d else sketch.identity()
            of_run = functools.partial(left, op, server)
            chosen, reported = (_over_grid(of_run, rates, part) for part in keys)
            for clipped, some in {"no": slice(0, 1), "yes": slice(1, None)}.items():
                high = quantile(chosen[:, some])
                best = np.unravel_index(np.argmin(high), high.shape)
                mine = reported[:, some][best]
                yield {
                    "tail": tail,
                    "server": server,
                    "numbers": count,
                    "clipped": clipped,
                    "rounds": rounds,
                    "rate": rates[best[0]],
                    "threshold": CLIPS[some][best[1]],
                    "median": float(np.median(mine)),
                    "high": float(quantile(mine)),
                }


def _over_grid(left, rates: Sequence[float], keys: jax.Array) -> np.ndarray:
    """Returns the final loss over the initial, shape=(rates, thresholds, runs)."""
    clips, runs = jnp.asarray(CLIPS), jax.vmap(left, (None, None, 0))

    @jax.jit
    def of_grid(keys):
        def of_rate(rate):
            return jax.lax.map(lambda clip: runs(rate, clip, keys), clips)

        return jax.lax.map(of_rate, jnp.asarray(rates))

    found = np.asarray(of_grid(keys), np.float64)
    return np.where(np.isfinite(found), found, np.inf)


def main(workdir: str, tails: Sequence[float], rounds: Sequence[int]):
    """Measures 200 parameters and sketches of 20 numbers, by 40 runs a method."""
    path = files.writable_folder(workdir) / "heavy_tails.csv"
    rows = (
        row
        for tail in tails
        for count in rounds
        for row in measure(d=200, tail=tail, rounds=count, numbers=20, runs=40)
    )
    toy.record(rows, path)


if __name__ == "__main__":
    from launch import command

    WORKDIR = flags.DEFINE_string("workdir", None, "Folder for heavy_tails.csv.")
    TAILS = flags.DEFINE_multi_float("tail", [3.0, 1.5, 1.2], "Tail of the noise.", 0.1)
    ROUNDS = flags.DEFINE_multi_integer("rounds", [100, 400], "Number of rounds.", 1)
    flags.mark_flag_as_required("workdir")
    command.run(lambda: main(WORKDIR.value, TAILS.value, ROUNDS.value))
