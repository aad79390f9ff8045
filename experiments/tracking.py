"""Measures gradient tracking (FedSKETCHGATE) on clients with different minima.

python -m experiments.tracking --workdir=/tmp/tracking

Client j has the loss (x - o_j)' diag(q_j) (x - o_j) / 2. Local steps of different
clients drift apart, so plain averaging ends away from the minimum of the mean after any
number of rounds. Control variates (FedGATE, SCAFFOLD) can correct this.

FedSKETCHGATE adds Phi - Phi_j to its control variates: the estimate from the mean
sketch minus that from the client's. With means of rows, Phi is the mean of all Phi_j.
The control variates then sum to zero, and the fixed point is the minimum. The paper
uses medians. A median of means is not the mean of medians, so the sum drifts.

A row of tracking.csv is an algorithm at the best of some server rates: `distance` is
|x - x*| / |x*| at the end (NaN: it diverged with all rates), and `of_fedavg` that over
FedAvg's. The gain of the variates is as the paper prints it, 1/tau, or exact without
compression, 1/(eta tau).
"""

import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import toy
from fl_sketch import algorithms, sketch
from fl_sketch.core import files

MINUTES = 1

RATE, STEPS, SERVER_RATES = 0.1, 5, (0.01, 0.03, 0.1, 0.3, 1.0)


def problem(*, d: int, clients: int, seed: int = 0) -> toy.Quadratics:
    """Returns clients with curvatures from 0.5 to 1.5 and optima of their own."""
    keys = jax.random.split(jax.random.key(seed), 2)
    curvatures = jax.random.uniform(keys[0], (clients, d), minval=0.5, maxval=1.5)
    return toy.Quadratics(curvatures, 1 + jax.random.normal(keys[1], (clients, d)))


def measure(
    task: toy.Quadratics,
    *,
    rows: int,
    cols: int,
    rounds: int,
    steps: int = STEPS,
    server_rates=SERVER_RATES,
) -> Iterator[dict]:
    """Yields a row for each algorithm; the count sketch has so many rows and columns.

    HEAPRIX sends as many heavy coordinates as columns.
    """
    clients, d = task.optima.shape
    gains = {"1/tau": 1 / steps, "1/(eta tau)": 1 / (RATE * steps)}
    own, none = {"its own": None}, {"": None}
    methods = [
        ("FedAvg", "", algorithms.fedavg, {}, none),
        ("SCAFFOLD", "", algorithms.scaffold, {"steps": steps}, own),
        ("FedGATE", "", algorithms.fedgate, {}, gains),
    ]
    for query, variant in itertools.product(("median", "mean"), ("privix", "heaprix")):
        op = sketch.count_sketch(cols, rows)
        if query == "mean":  # of rows, which is the adjoint
            op = op._replace(estimate=op.transpose)
        options = {"sketch": op, "query": variant}
        plain, gate = algorithms.fedsketch, algorithms.fedsketchgate
        methods.append((f"FedSKETCH {variant}", query, plain, options, none))
        methods.append((f"FedSKETCHGATE {variant}", query, gate, options, gains))

    of_fedavg = np.nan
    for name, query, make, options, variates in methods:

        def gap(gain, server_rate, make=make, options=options, variates=variates):
            gained = {"gain": gain} if variates is gains else {}
            rates = {"client_rate": RATE, "server_rate": server_rate}
            made = make(task.loss, **rates, **gained, **options)
            begin, key, nothing = jnp.zeros(d), jax.random.key(1), lambda *_: None
            run = begin, key, jnp.zeros(rounds), nothing
            end, _ = toy.trajectory(lambda _: made, *run, steps=steps, clients=clients)
            optimum = (task.matrices * task.optima).sum(0) / task.matrices.sum(0)
            off = end.server.params - optimum
            return jnp.linalg.norm(off) / jnp.linalg.norm(optimum)

        def of_gain(gain, gap=gap):
            rates = jnp.asarray(server_rates)
            return jax.lax.map(lambda server_rate: gap(gain, server_rate), rates)

        # One program for all gains and server rates.
        tried = jnp.asarray([gain or 0.0 for gain in variates.values()])
        found = np.asarray(
            jax.jit(lambda tried, f=of_gain: jax.lax.map(f, tried))(tried)
        )
        for gain, gaps in zip(variates, found, strict=True):
            best = int(np.argmin(np.where(np.isfinite(gaps), gaps, np.inf)))
            distance = float(gaps[best])
            if name == "FedAvg":
                of_fedavg = distance if 0 < distance < np.inf else np.nan
            yield {
                "algorithm": name,
                "query": query,
                "variates": gain,
                "server_rate": server_rates[best],
                "distance": distance,
                "of_fedavg": distance / of_fedavg,
            }


def main(workdir: str):
    """Measures the problem of results/fedsketch: 200 parameters, ten clients."""
    path = files.writable_folder(workdir) / "tracking.csv"
    rows = measure(problem(d=200, clients=10), rows=5, cols=20, rounds=2000)
    toy.record(rows, path)


if __name__ == "__main__":
    from launch import command

    WORKDIR = flags.DEFINE_string("workdir", None, "Folder for tracking.csv.")
    flags.mark_flag_as_required("workdir")
    command.run(lambda: main(WORKDIR.value))
