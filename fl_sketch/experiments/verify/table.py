"""Rows of theorems beside measurements, and the curves that are measured."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.algorithms import catalog
from fl_sketch.core.protocols import Sketch
from fl_sketch.experiments.verify.known_problems import Wells

HEAD = (
    "theorem                          operator           rounds  needed       start"
    "       bound    measured    ratio"
)


class Row(NamedTuple):
    """One theorem, beside what was measured.

    Attributes:
      theorem: the paper and the number of the theorem.
      operator: the name of the sketch operator; of Haddadpour et al. the way to read
        it.
      problem: the losses of the clients.
      constants: the constants, and what the algorithm was given.
      quantity: the number that is bounded.
      rounds: the number of rounds that the theorem asks for, or was given.
      needed: the number of rounds after which the quantity was below the bound; NaN: it
        has no such rounds, or never was.
      start: the quantity at the parameters before the first round, or what is known of
        it without a theorem; a bound above it says nothing.
      bound: the theorem's bound.
      measured: the same, measured.
      ratio: the bound over it; below 1 the theorem would be wrong.
    """

    theorem: str
    operator: str
    problem: str
    constants: str
    quantity: str
    rounds: int
    needed: float
    start: float
    bound: float
    measured: float
    ratio: float


def row(
    theorem: str,
    operator: str,
    problem: str,
    constants: dict[str, Any],
    quantity: str,
    curve: np.ndarray,
    *,
    start: float,
    bound: float,
) -> Row:
    """Returns the row of a theorem.

    Args:
      theorem: the paper and the number of the theorem.
      operator: the name of the sketch operator.
      problem: the losses of the clients.
      constants: the constants by name.
      quantity: the number that is bounded.
      curve: this quantity after every round, as measured.
      start: the quantity before the first.
      bound: the theorem's bound after the last.
    """
    below = np.flatnonzero(curve <= bound)
    needed = float(below[0] + 1) if below.size else math.nan
    shown = " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in constants.items()
    )
    measured, rounds = float(curve[-1]), len(curve)
    ratio = bound / measured if measured else math.inf
    return Row(
        *(theorem, operator, problem, shown, quantity, rounds, needed),
        *(start, bound, measured, ratio),
    )


def line(found: Row) -> str:
    """Returns the row `found` as text, below `HEAD`; the rest of it is in the csv."""
    text = "{:32} {:17} {:7d} {:7g} {:11.4g} {:11.4g} {:11.4g} {:8.3g}"
    return text.format(
        *(found.theorem, found.operator, found.rounds, found.needed, found.start),
        *(found.bound, found.measured, found.ratio),
    )


def sketch_of(operator: str, d: int, b: int, rows: int = 1) -> Sketch:
    """Returns the operator that sends b numbers.

    Args:
      operator: its name, as configs have it.
      d: the number of parameters.
      b: the number of numbers in a message.
      rows: the number of rows of a count sketch, which share the numbers.
    """
    return catalog.build_sketch(
        operator, d, compression=1.0, rows=rows, layout="whole", numbers=min(b, d)
    )


def over_walks(value: Callable, walked: np.ndarray) -> np.ndarray:
    """Returns the value of all parameters, shape=(walks, places).

    Args:
      value: a function of parameters.
      walked: the parameters, shape=(walks, places, d).
    """
    of_walk = jax.jit(lambda walk: jax.lax.map(value, walk, batch_size=64))
    return np.stack([np.asarray(of_walk(jnp.asarray(walk))) for walk in walked])


def squares(task: Wells, walked: np.ndarray) -> np.ndarray:
    """Returns `|grad f|^2` of all parameters, shape=(walks, places).

    Args:
      task: the problem.
      walked: the parameters, shape=(walks, places, d).
    """
    return over_walks(lambda x: jnp.sum(jax.grad(task.mean_loss)(x) ** 2), walked)


def running_mean(values: np.ndarray) -> np.ndarray:
    """Returns the means of all places up to each, along the second axis of `values`."""
    counts = np.arange(1, values.shape[1] + 1).reshape(-1, *[1] * (values.ndim - 2))
    return np.cumsum(values, axis=1, dtype=np.float64) / counts
