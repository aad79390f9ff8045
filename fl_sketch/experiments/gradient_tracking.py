"""Gradient tracking on clients that differ: which algorithm reaches their minimum?

Client j has the loss (x - o_j)' diag(q_j) (x - o_j) / 2. Local steps of different
clients drift apart, so plain averaging ends away from the minimum of the mean after any
number of rounds. Control variates (FedGATE, SCAFFOLD) can correct this.

FedSKETCHGATE adds Phi - Phi_j to its control variates: the estimate from the mean
sketch minus that from the client's. With means of rows, Phi is the mean of all Phi_j.
The control variates then sum to zero, and the fixed point is the minimum. The paper
uses medians. A median of means is not the mean of medians, so the sum drifts.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch import algorithms, engine, sketch
from fl_sketch.core import validate
from fl_sketch.core.protocols import Algorithm
from fl_sketch.experiments.measurements import Column, Table
from fl_sketch.experiments.verify import walks

Made = Callable[[jax.Array, jax.Array], Algorithm]  # from a gain and a server rate


class DiagonalQuadratics(NamedTuple):
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
    """The result of one algorithm.

    Attributes:
      query: how a sketch is read, by the median or mean of its rows; empty: no sketch.
      variates: the gain of the control variates; empty: there are none.
      server_rate: the best of the rates that were tried.
      distance: `|x - x*| / |x*|` at the end; NaN: it diverged with all rates.
      of_fedavg: the same over FedAvg's.
    """

    algorithm: Annotated[str, Column("22")]
    query: Annotated[str, Column("8", "read by")]
    variates: Annotated[str, Column("12", "control gain")]
    server_rate: Annotated[float, Column("11g", "server rate")]
    distance: Annotated[float, Column("14.3g", "distance left")]
    of_fedavg: Annotated[float, Column("12.3g", "/ FedAvg")]


TABLE = Table.of(Row)


def problem(
    *, d: int, clients: int, rate: float = 0.1, steps: int = 5, seed: int = 0
) -> DiagonalQuadratics:
    """Returns clients with curvatures from 0.5 to 1.5 and optima of their own."""
    validate.at_least_one(d=d, clients=clients, steps=steps)
    keys = jax.random.split(jax.random.key(seed), 2)
    curvature = jax.random.uniform(keys[0], (clients, d), minval=0.5, maxval=1.5)
    optima = 1 + jax.random.normal(keys[1], (clients, d))
    return DiagonalQuadratics(curvature, optima, rate, steps)


def measure(
    task: DiagonalQuadratics,
    *,
    rows: int,
    cols: int,
    rounds: int,
    server_rates: Sequence[float],
) -> Iterator[Row]:
    """Yields a row for each algorithm, at the best of some server rates.

    The count sketch has so many rows and columns; HEAPRIX sends as many heavy
    coordinates as columns. All clients take part in all rounds.
    """
    plain, rates = None, jnp.asarray(server_rates)
    for name, query, made, gains in _variants(task, rows, cols):

        def of_gain(gain, made=made):
            of_rate = functools.partial(_gap, task, made, rounds, gain)
            return jax.lax.map(of_rate, rates)

        # One program for all gains and server rates.
        gaps = jax.jit(jax.lax.map, static_argnums=0)(
            of_gain, jnp.asarray(list(gains.values()))
        )
        for variates, of_rates in zip(gains, gaps, strict=True):
            finite = jnp.where(jnp.isfinite(of_rates), of_rates, jnp.inf)
            best = int(jnp.argmin(finite))
            gap = float(of_rates[best])
            plain = plain or gap
            yield Row(name, query, variates, server_rates[best], gap, gap / plain)


def _variants(
    task: DiagonalQuadratics, rows: int, cols: int
) -> Iterator[tuple[str, str, Made, Mapping[str, float]]]:
    """Yields (name, query, what makes it of a gain and a server rate, its gains)."""
    rate, steps = task.rate, task.steps
    # Both gains of the variates: as it is printed, and exact without compression.
    gains = {"1/tau": 1 / steps, "1/(eta tau)": 1 / (rate * steps)}

    def made(make, *, gained: bool = False, **options) -> Made:
        def of(gain, server_rate):
            gain = {"gain": gain} if gained else {}
            rates = {"client_rate": rate, "server_rate": server_rate}
            return make(task.loss, **rates, **gain, **options)

        return of

    yield "FedAvg", "", made(algorithms.fedavg), {"": 0.0}
    yield "SCAFFOLD", "", made(algorithms.scaffold, steps=steps), {"its own": 0.0}
    yield "FedGATE", "", made(algorithms.fedgate, gained=True), gains
    for query, channel in itertools.product(("median", "mean"), ("privix", "heaprix")):
        op = sketch.count_sketch(cols, rows)
        if query == "mean":
            op = op._replace(estimate=op.transpose)
        plain = made(algorithms.fedsketch, sketch=op, query=channel)
        yield f"FedSKETCH {channel}", query, plain, {"": 0.0}
        gate = algorithms.fedsketchgate
        tracking = made(gate, gained=True, sketch=op, query=channel)
        yield f"FedSKETCHGATE {channel}", query, tracking, gains


def _gap(task, made: Made, rounds: int, gain, server_rate) -> jax.Array:
    """Returns `|x - x*| / |x*|` after all rounds."""
    clients, d = task.optima.shape
    algorithm = made(gain, server_rate)
    one_round = walks.round_of(algorithm, steps=task.steps, clients=clients)

    def step(state, _):
        return one_round(state, jax.random.key(1))[0], None

    start = engine.initial_state(algorithm, jnp.zeros(d), clients)
    state = jax.lax.scan(step, start, length=rounds)[0]
    off = state.server.params - task.minimum
    return jnp.linalg.norm(off) / jnp.linalg.norm(task.minimum)
