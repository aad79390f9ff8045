"""Gradient tracking on clients that differ: who reaches the minimum of all?

Client j has the loss (x - o_j)' diag(q_j) (x - o_j) / 2. Local steps of unlike clients
pull apart, so that plain averaging ends beside the minimum of the mean, however many
rounds it is given; with variates (FedGATE, SCAFFOLD) it need not.

FedSKETCHGATE's variates get Phi - Phi_j, what is read from the mean sketch less what
is read from an own one. Read by means of rows, Phi is the mean of all Phi_j and the
variates keep the sum of zero that puts the fixed point at the minimum. The paper reads
by medians, and a median of means is no mean of medians: the sum drifts.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch import algorithms, engine, sketch
from fl_sketch.core import validate
from fl_sketch.core.protocols import Algorithm

HEAD = (
    "algorithm              read by  variates     server rate  distance left   / FedAvg"
)
Made = Callable[[jax.Array, jax.Array], Algorithm]  # from a gain and a server rate
Variants = tuple[Made, Mapping[str, float]]  # and the gains it is tried with


class Problem(NamedTuple):
    """Clients with diagonal quadratics, and how they work on them.

    Attributes:
      curvature: q, shape=(clients, d).
      optima: o, shape=(clients, d).
      rate: eta of the local steps.
      steps: tau, the number of local steps.
    """

    curvature: jax.Array
    optima: jax.Array
    rate: float
    steps: int

    def loss(self, params: jax.Array, client: jax.Array) -> jax.Array:
        """Returns the loss at `params` of `client`, a number that may be traced."""
        off = params - self.optima[client]
        return jnp.sum(self.curvature[client] * off**2) / 2

    @property
    def minimum(self) -> jax.Array:
        """The minimum of the mean of all losses, shape=(d,)."""
        pulls = (self.curvature * self.optima).sum(0)
        return pulls / self.curvature.sum(0)


class Row(NamedTuple):
    """What one algorithm came to.

    Attributes:
      algorithm: the name of the algorithm.
      query: what a sketch is read by, median or mean of its rows; empty: no sketch.
      variates: the gain of the variates; empty: there are none.
      server_rate: the best of the rates that were tried.
      distance: `|x - x*| / |x*|` at the end; NaN: it diverged with all rates.
      of_fedavg: the same over FedAvg's.
    """

    algorithm: str
    query: str
    variates: str
    server_rate: float
    distance: float
    of_fedavg: float


def problem(
    *, d: int, clients: int, rate: float = 0.1, steps: int = 5, seed: int = 0
) -> Problem:
    """Returns clients with curvatures from 0.5 to 1.5 and optima of their own.

    Args:
      d: the number of parameters.
      clients: the number of clients.
      rate: eta of the local steps.
      steps: tau, the number of local steps.
      seed: the seed of curvatures and optima.
    """
    validate.at_least_one(d=d, clients=clients, steps=steps)
    keys = jax.random.split(jax.random.key(seed), 2)
    curvature = jax.random.uniform(keys[0], (clients, d), minval=0.5, maxval=1.5)
    optima = 1 + jax.random.normal(keys[1], (clients, d))
    return Problem(curvature, optima, rate, steps)


def measure(
    task: Problem, *, rows: int, cols: int, rounds: int, server_rates: Sequence[float]
) -> Iterator[Row]:
    """Yields a row for each algorithm, at its best server rate.

    Args:
      task: the problem.
      rows: the number of rows of the count sketch.
      cols: the number of its columns; HEAPRIX sends as many heavy coordinates.
      rounds: the number of rounds, all with all clients.
      server_rates: the rates to choose from.
    """
    plain = None
    for (name, query), (made, gains) in _made(task, rows, cols).items():
        run = functools.partial(_gap, task, made, rounds)
        pairs = [jnp.asarray(axis) for axis in (list(gains.values()), server_rates)]
        # One program for all gains and server rates.
        gaps = jax.jit(lambda run=run, pairs=pairs: _over(run, *pairs))()
        for variates, found in zip(gains, gaps, strict=True):
            best = int(jnp.argmin(jnp.where(jnp.isfinite(found), found, jnp.inf)))
            gap = float(found[best])
            plain = plain or gap
            yield Row(name, query, variates, server_rates[best], gap, gap / plain)


def line(row: Row) -> str:
    """Returns `row` as text, below `HEAD`."""
    return "{:22} {:8} {:12} {:11g} {:14.3g} {:12.3g}".format(*row)


def _made(task: Problem, rows: int, cols: int) -> dict[tuple[str, str], Variants]:
    """Returns, by algorithm and query, what makes it of a gain and a server rate."""
    rate, steps = task.rate, task.steps
    # Both gains of the variates: as it is printed, and exact without compression.
    gains = {"1/tau": 1 / steps, "1/(eta tau)": 1 / (rate * steps)}
    common: dict[str, Any] = {"loss": task.loss, "client_rate": rate}

    def plain(make, **options):
        return lambda gain, server_rate: make(
            server_rate=server_rate, **options, **common
        )

    def tracking(make, **options):
        return lambda gain, server_rate: make(
            gain=gain, server_rate=server_rate, **options, **common
        )

    made: dict[tuple[str, str], Variants] = {
        ("FedAvg", ""): (plain(algorithms.fedavg), {"": 0.0}),
        ("SCAFFOLD", ""): (
            plain(algorithms.scaffold, steps=steps),
            {"its own": 0.0},
        ),
        ("FedGATE", ""): (tracking(algorithms.fedgate), gains),
    }
    for query, channel in itertools.product(("median", "mean"), ("privix", "heaprix")):
        op = sketch.count_sketch(cols, rows, query=query)
        options = {"sketch": op, "query": channel}
        made[f"FedSKETCH {channel}", query] = (
            plain(algorithms.fedsketch, **options),
            {"": 0.0},
        )
        made[f"FedSKETCHGATE {channel}", query] = (
            tracking(algorithms.fedsketchgate, **options),
            gains,
        )
    return made


def _over(run: Callable, gains: jax.Array, server_rates: jax.Array) -> jax.Array:
    """Returns run(gain, server rate) for all pairs, shape=(gains, server_rates)."""
    return jax.lax.map(
        lambda gain: jax.lax.map(lambda gamma: run(gain, gamma), server_rates), gains
    )


def _gap(task: Problem, made: Made, rounds: int, gain, server_rate) -> jax.Array:
    """Returns `|x - x*| / |x*|` after all rounds."""
    clients, d = task.optima.shape

    def fetch(data, client, plan, key):
        del data, plan, key
        return jnp.full(task.steps, client)

    algorithm = made(gain, server_rate)
    one_round = engine.with_everyone(algorithm, fetch, clients)

    def one(state, _):
        return one_round(state, jax.random.key(1))[0], None

    start = engine.initial_state(algorithm, jnp.zeros(d), clients)
    state = jax.lax.scan(one, start, length=rounds)[0]
    off = state.server.params - task.minimum
    return jnp.linalg.norm(off) / jnp.linalg.norm(task.minimum)
