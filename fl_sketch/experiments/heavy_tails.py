"""Clipping where gradients have heavy tails: does SAFL need it?

All clients have the loss sum_i q_i x_i^2 / 2 and the minimum 0. The gradient of a local
step has noise whose moments exist below the order `tail` only, as Chen et al. assume in
their section on heavy tails. Below 2 its variance is infinite. SAFL runs with and
without clipping of the clients' updates, and a server that takes plain steps (SGD) runs
for comparison. The paper does not print the clipped form; see `algorithms.safl`.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fl_sketch import algorithms, engine, sketch, transforms
from fl_sketch.core import validate
from fl_sketch.experiments.measurements import Column, Table
from fl_sketch.experiments.verify import walks

SERVERS = {"sgd": optax.sgd, "amsgrad": transforms.paper_amsgrad}
CLIENT_RATE = 0.1
RATES = {  # of the servers
    "sgd": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "amsgrad": (0.001, 0.003, 0.01, 0.03, 0.1),
}
CLIPS = (0.0, 0.3, 1.0, 3.0, 10.0)  # 0: none
HIGH = 0.95  # the quantile of runs


class Scene(NamedTuple):
    """A problem, and how long it runs.

    Attributes:
      curvature: q, shape=(d,).
      tail: the degrees of freedom of the noise, which is Student's t.
      clients: the number of clients, which all take part in each round.
      steps: the local steps of a round.
      rounds: the number of rounds.
    """

    curvature: jax.Array
    tail: float
    clients: int = 10
    steps: int = 2
    rounds: int = 1000

    def loss(self, params: jax.Array, noise: jax.Array) -> jax.Array:
        """Returns the loss at `params` whose gradient has this `noise`."""
        return jnp.sum(self.curvature * params**2) / 2 + noise @ params

    def batch(self, client: jax.Array, key: jax.Array) -> jax.Array:
        """Returns the noise of the steps of a `client`: one length for each step."""
        del client
        direction, length = jax.random.split(key)
        normal = jax.random.normal(direction, (self.steps, self.curvature.size))
        chi = jax.random.gamma(length, self.tail / 2, (self.steps, 1)) * 2
        return normal * jnp.sqrt(self.tail / chi)


class Row(NamedTuple):
    """A method at the rate and threshold that are best on other seeds.

    Attributes:
      tail: below this order the noise has moments.
      server: the server's optimizer.
      numbers: the numbers of a message.
      clipped: whether clients clip their updates.
      rounds: the number of rounds.
      rate: the best rate of the server.
      threshold: the best threshold; 0: none.
      median: of the loss after the last round over that before the first.
      high: the same for the 0.95 quantile.
    """

    tail: Annotated[float, Column("5g")]
    server: Annotated[str, Column("8")]
    numbers: Annotated[int, Column("8d")]
    clipped: Annotated[str, Column("8")]
    rounds: Annotated[int, Column("7d")]
    rate: Annotated[float, Column("7g")]
    threshold: Annotated[float, Column("9g")]
    median: Annotated[float, Column("9.3g")]
    high: Annotated[float, Column("9.3g", "0.95")]


TABLE = Table.of(Row)


def scene(*, d: int, tail: float, rounds: int) -> Scene:
    """Returns the problem of `d` parameters, with curvatures from 0.1 to 1."""
    validate.at_least_one(d=d, rounds=rounds)
    validate.in_range(0.1, 100.0, tail=tail)
    return Scene(jnp.geomspace(0.1, 1.0, d), tail, rounds=rounds)


def measure(task: Scene, *, numbers: int, runs: int) -> Iterator[Row]:
    """Yields a row for each server, without a sketch and with one, clipped and not.

    Args:
      task: the problem.
      numbers: the numbers of a sketch.
      runs: the number of runs of which quantiles are taken, and of which others choose
        the rate and the threshold.
    """
    keys = jax.random.split(jax.random.key(0), (2, runs))
    for server, rates in RATES.items():
        for count in (task.curvature.size, numbers):
            left = functools.partial(_left, task, _maker(task, server, count))
            chosen, reported = (_over_grid(left, rates, part) for part in keys)
            for clipped, some in {"no": slice(0, 1), "yes": slice(1, None)}.items():
                high = quantile(chosen[:, some])
                best = np.unravel_index(np.argmin(high), high.shape)
                mine = reported[:, some][best]
                yield Row(
                    task.tail,
                    server,
                    count,
                    clipped,
                    task.rounds,
                    rates[best[0]],
                    CLIPS[some][best[1]],
                    float(np.median(mine)),
                    float(quantile(mine)),
                )


def quantile(found: np.ndarray) -> np.ndarray:
    """Returns the high quantile over the last axis; runs that diverge are infinite."""
    return np.quantile(found, HIGH, axis=-1, method="higher")


def _maker(task: Scene, server: str, numbers: int) -> Callable:
    """Returns `(rate, threshold) -> algorithm`."""
    d = task.curvature.size
    op = sketch.count_sketch(numbers) if numbers < d else sketch.identity()

    def make(rate, threshold):
        return algorithms.safl(
            task.loss,
            sketch=op,
            client_rate=CLIENT_RATE,
            server=SERVERS[server](rate),
            client_clip=threshold,
        )

    return make


def _over_grid(left: Callable, rates: Sequence[float], keys: jax.Array) -> np.ndarray:
    """Returns the final loss over the initial, shape=(rates, thresholds, runs)."""

    @jax.jit
    def of_grid(keys):
        def of_rate(rate):
            of_run = jax.vmap(left, (None, None, 0))
            return jax.lax.map(lambda clip: of_run(rate, clip, keys), clips)

        return jax.lax.map(of_rate, jnp.asarray(rates))

    clips = jnp.asarray(CLIPS)
    found = np.asarray(of_grid(keys), np.float64)
    return np.where(np.isfinite(found), found, np.inf)


def _left(task: Scene, make: Callable, rate, threshold, key) -> jax.Array:
    """Returns the final loss of a run over the initial."""
    algorithm = make(rate, threshold)
    one_round = walks.round_of(
        algorithm,
        steps=task.steps,
        clients=task.clients,
        chunk=task.clients,
        batch=task.batch,
    )

    def step(state, _):
        return one_round(state, key)[0], None

    begin = jnp.ones_like(task.curvature)
    start = engine.initial_state(algorithm, begin, task.clients)
    end = jax.lax.scan(step, start, length=task.rounds)[0].server.params
    return jnp.sum(task.curvature * end**2) / jnp.sum(task.curvature)
