"""Das et al.'s Theorem 2 and Haddadpour et al.'s Theorems 2 and 3, and measurements.

Haddadpour et al. state orders. With constants of one they are promises that may fail,
and a ratio below 1 says that a constant is larger.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import algorithms, sketch, theory
from fl_sketch.experiments.verify import known_problems, walks
from fl_sketch.experiments.verify.known_problems import Quadratics
from fl_sketch.experiments.verify.rows import Row, row
from fl_sketch.theory import Constants

SEEDS = range(4)
PRIVATE, LOCAL, RHO = 20, 4, 0.05  # clients and local steps of Das et al., privacy
D, COLS, CLIENTS, NOISE = 64, 16, 4, 0.3  # of Haddadpour et al.
CONDITION, TARGET, DELTA = 5.0, 0.03, 1e-3


def das() -> Row:
    """Returns the row of Das et al.'s Theorem 2, of DP-FedAvg with clipping."""
    task = known_problems.quadratics(
        d=32, clients=PRIVATE, condition=CONDITION, seed=0, apart=0.02
    )
    off = np.asarray(task.optimum - task.optima, np.float64)
    worse = np.einsum("ci,cij,cj->c", off, np.asarray(task.matrices), off) / 2
    threshold = 4 * LOCAL * math.sqrt(task.smoothness * worse.max())
    private = {"rho": RHO, "gap": float(worse.max()), "threshold": threshold}
    constants = replace(task.constants, steps=LOCAL, **private)
    gamma = task.smoothness * math.sqrt(constants.distance)
    target = 1.1 * theory.clipped_error(constants, alpha=1e9, gamma=gamma)
    bound = theory.clipped(constants, target=target)
    alpha = RHO / (2 * task.smoothness * bound.step)
    noise = RHO * PRIVATE * math.sqrt(bound.rounds / 32)

    def make(rate):
        return algorithms.dp_fedavg(
            task.loss,
            client_rate=rate,
            threshold=threshold,
            noise_multiplier=noise,
            cohort=PRIVATE,
        )

    walked = walks.walk(make, bound.constants, SEEDS)
    left = _left_side(task, walked[:, :-1], bound.constants, alpha)
    means, names = walks.running_mean(left).mean(0), ("quadratics", "left side of (6)")
    others = {"alpha": alpha, "z": noise}
    return row("Das Theorem 2", *names, bound, means, float(left[0, 0]), **others)


def _left_side(
    task: Quadratics, walked: np.ndarray, c: Constants, alpha: float
) -> np.ndarray:
    """Returns what Theorem 2 bounds the mean of, at all parameters."""
    share = RHO * LOCAL / alpha

    def value(params):
        places = walks.steps_of_clients(task, params, c)
        u = jnp.linalg.norm(places[:, 0] - places[:, -1], axis=1) / c.step
        losses = jax.vmap(task.loss, (None, 0))
        worse = losses(params, jnp.arange(PRIVATE))
        worse -= losses(task.optimum, jnp.arange(PRIVATE))
        whole = (2 - share - share**2) * worse
        cut = 3 * c.threshold * u / (8 * task.smoothness * LOCAL**2)
        return jnp.mean(jnp.where(u <= c.threshold, whole, cut))

    return walks.over_walks(value, walked)


def haddadpour(variant: str, *, tracking: bool) -> Iterator[Row]:
    """Yields the rows of Theorem 2, or with tracking Theorem 3.

    Args:
      variant: the way to read sketches: "privix" or "heaprix".
      tracking: whether it is FedSKETCHGATE, for clients that differ.
    """
    task = known_problems.quadratics(
        d=D, clients=CLIENTS, condition=CONDITION, seed=0, apart=0.5
    )
    if not tracking:  # all clients have the same losses
        task = task._replace(
            matrices=jnp.broadcast_to(task.matrices[:1], task.matrices.shape),
            optima=jnp.broadcast_to(task.optima[:1], task.optima.shape),
            optimum=task.optima[0],
            spread=0.0,
        )
    hessian = task.matrices.mean(0)

    def gradient(params):
        return hessian @ (params - task.optimum)

    constants = replace(task.constants, server_rate=float(CLIENTS), delta=DELTA)
    for objective in ("pl", "nonconvex"):
        kind = {"objective": objective, "variant": variant, "tracking": tracking}
        bound = theory.fedsketch(constants, TARGET, cols=COLS, **kind)
        rows = math.ceil(math.log(D * bound.rounds / DELTA))
        walked = _walk(task, variant, bound.constants, rows, tracking=tracking)
        if objective == "pl":
            curve = walks.over_walks(task.excess, walked).mean(0)[1:]
            quantity, start = "E f(w) - f*", constants.start
        else:
            squares = walks.squares(gradient, walked)
            curve = walks.running_mean(squares[:, :-1]).mean(0)
            quantity, start = "mean |grad f|^2", float(squares[0, 0])
        name = f"Haddadpour {2 + tracking}, {objective}"
        sketched = {"operator": variant, "cols": COLS, "rows": rows, "noise": NOISE}
        yield row(name, "quadratics", quantity, bound, curve, start, **sketched)


def _walk(
    task: Quadratics, variant: str, c: Constants, rows: int, *, tracking: bool
) -> np.ndarray:
    """Returns walks whose gradients have noise of the variance NOISE^2."""
    op, tau = sketch.count_sketch(COLS, rows), c.steps
    common = {"sketch": op, "server_rate": float(CLIENTS), "query": variant}

    def loss(params, drawn):
        return task.loss(params, drawn[0].astype(jnp.int32)) + drawn[1:] @ params

    def make(rate):
        if tracking:  # with the gain as printed
            gain = 1 / tau
            return algorithms.fedsketchgate(loss, client_rate=rate, gain=gain, **common)
        return algorithms.fedsketch(loss, client_rate=rate, **common)

    def batch(client, key):
        noise = jax.random.normal(key, (tau, D)) * NOISE / D**0.5
        return jnp.concatenate([jnp.full((tau, 1), client, jnp.float32), noise], 1)

    return walks.walk(make, c, SEEDS, batch=batch)
