"""Das et al.'s theorems and measurements: Theorems 2 to 4, and Proposition 1.

The bounds on the left sides (6), (7) and (14) are those of `theory`, which keeps the
constants of their proofs.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import algorithms, theory
from fl_sketch.experiments.verify import known_problems, walks
from fl_sketch.experiments.verify.known_problems import Quadratics
from fl_sketch.experiments.verify.rows import Row, row
from fl_sketch.privacy import clipping
from fl_sketch.theory import Bound, Constants
from fl_sketch.theory.das import OF_GRADIENT

SEEDS = range(4)
D, CLIENTS, STEPS, RHO = 32, 20, 4, 0.05
CONDITION, APART = 5.0, 0.02
ROOM = 2.0  # G over the longest gradient at the start; that of walks is `longest`


class Clients(NamedTuple):
    """Numbers of every client along walks, shape=(seeds, rounds, clients).

    Attributes:
      length: `|u_i|` of its sum of gradients.
      excess: f_i(w) - f_i(w*).
      gap: f_i(w*) - min f_i.
      slope: `|grad f_i(w)|`.
    """

    length: np.ndarray
    excess: np.ndarray
    gap: np.ndarray
    slope: np.ndarray


def das() -> Iterator[Row]:
    """Yields the rows of Theorems 2 to 4, and of Proposition 1."""
    task = known_problems.quadratics(
        d=D, clients=CLIENTS, condition=CONDITION, seed=0, apart=APART
    )
    constants = _constants(task)
    gamma = task.smoothness * math.sqrt(constants.distance)
    least = theory.clipped_error(constants, alpha=1e9, gamma=gamma)

    bound = theory.clipped(constants, 1.1 * least)
    seen = _seen(task, bound, clipping.clip)
    yield _row("Das Theorem 2", "left side of (6)", bound, seen, _clipped)
    bound = theory.clipped_minimum(constants, 1.1 * 4 / 5 * least)
    yield _row("Das Theorem 3", "left side of (7)", bound, seen, _minimum)

    bound = theory.normalised(constants, 1.1 * least)
    seen = _seen(task, bound, clipping.normalise)
    yield _row("Das Theorem 4", "left side of (14)", bound, seen, _normalised)

    slopes = _numbers(task, jnp.zeros(D), constants)[3]
    known = {"gradient": ROOM * float(slopes.max()), "convexity": task.convexity}
    bound = theory.unclipped(replace(constants, **known))
    seen = _seen(task, bound, clipping.clip)
    name, longest = "Das Proposition 1", float(seen.slope.max())
    error = lambda at, *_: at.excess  # noqa: E731
    yield _row(f"{name}: error", "E f(w) - f*", bound, seen, error, longest=longest)
    curve = np.maximum.accumulate(seen.length.max((0, 2)))
    threshold = bound._replace(error=bound.constants.threshold)
    quantity, start = "largest |u|", float(curve[0])
    others = _others(bound) | {"longest": longest}
    found = row(f"{name}: C", "quadratics", quantity, threshold, curve, start, **others)
    yield found._replace(needed=math.nan)


def _constants(task: Quadratics) -> Constants:
    """Returns the constants, with the smallest threshold that theorems admit."""
    off = np.asarray(task.optimum - task.optima, np.float64)
    worse = np.einsum("ci,cij,cj->c", off, np.asarray(task.matrices), off) / 2
    threshold = 4 * STEPS * math.sqrt(task.smoothness * worse.max())
    private = {"rho": RHO, "gap": float(worse.max()), "threshold": threshold}
    return replace(task.constants, steps=STEPS, step=1e-6, **private)


def _others(bound: Bound) -> dict[str, float]:
    """Returns alpha, and the noise multiplier."""
    c = bound.constants
    alpha = c.rho / (2 * c.smoothness * c.step)
    return {"alpha": alpha, "z": c.rho * c.clients * math.sqrt(c.rounds / c.d)}


def _seen(task: Quadratics, bound: Bound, limit: Callable) -> Clients:
    """Returns the numbers of clients along walks of DP-FedAvg."""
    c, z = bound.constants, _others(bound)["z"]

    def make(rate):
        return algorithms.dp_fedavg(
            task.loss,
            client_rate=rate,
            threshold=c.threshold,
            noise_multiplier=z,
            cohort=CLIENTS,
            bound=limit,
        )

    walked = walks.walk(make, c, SEEDS)[:, :-1]
    found = walks.over_walks(lambda x: _numbers(task, x, c), walked)
    return Clients(*np.moveaxis(found, 2, 0))


def _numbers(task: Quadratics, params: jax.Array, c: Constants) -> jax.Array:
    """Returns the numbers of `Clients` at some parameters, shape=(4, clients)."""
    places, numbers = walks.steps_of_clients(task, params, c), jnp.arange(CLIENTS)
    losses = jax.vmap(task.loss, (None, 0))
    gradients = jax.vmap(jax.grad(task.loss), (None, 0))(params, numbers)
    gap = losses(task.optimum, numbers)
    length = jnp.linalg.norm(places[:, 0] - places[:, -1], axis=1) / c.step
    excess, slope = losses(params, numbers) - gap, jnp.linalg.norm(gradients, axis=1)
    return jnp.stack([length, excess, gap, slope])


def _row(
    name: str,
    quantity: str,
    bound: Bound,
    seen: Clients,
    count: Callable,
    **known: float,
) -> Row:
    """Returns the row of a mean over clients and rounds of what each counts."""
    others = _others(bound) | known
    share = bound.constants.rho * bound.constants.steps / others["alpha"]
    counted = count(seen, bound.constants, share).mean(2)
    curve, start = walks.running_mean(counted).mean(0), float(counted[0, 0])
    return row(name, "quadratics", quantity, bound, curve, start, **others)


def _clipped(seen: Clients, c: Constants, share: float) -> np.ndarray:
    """Returns what clients count in Theorem 2; `share` is rho E / alpha."""
    whole = (2 - share - share**2) * seen.excess
    return np.where(seen.length <= c.threshold, whole, _cut(seen, c))


def _minimum(seen: Clients, c: Constants, share: float) -> np.ndarray:
    """Returns what clients count in Theorem 3."""
    del share
    part = OF_GRADIENT * c.threshold / (c.steps * c.smoothness)
    return np.minimum(seen.excess, part * seen.slope)


def _normalised(seen: Clients, c: Constants, share: float) -> np.ndarray:
    """Returns what clients count in Theorem 4."""
    whole = 2 * seen.excess - share**2 * (seen.excess + seen.gap)
    whole = whole * c.threshold / seen.length
    return np.where(seen.length <= c.threshold, whole, _cut(seen, c))


def _cut(seen: Clients, c: Constants) -> np.ndarray:
    return 3 * c.threshold * seen.length / (8 * c.smoothness * c.steps**2)
