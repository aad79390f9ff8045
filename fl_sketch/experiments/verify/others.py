"""Das et al.'s Theorem 2 and Haddadpour et al.'s Theorems 2 and 3 beside measurements.

Haddadpour et al. state orders. With constants of one they are promises that may fail,
and a ratio below 1 says that a constant is larger.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import algorithms, sketch, theory
from fl_sketch.experiments.verify import known_problems
from fl_sketch.experiments.verify.known_problems import Quadratics
from fl_sketch.experiments.verify.table import Row, over_walks, row, running_mean

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
    own = np.einsum("ci,cij,cj->c", off, np.asarray(task.matrices), off) / 2
    known: dict[str, Any] = {"smoothness": task.smoothness, "rho": RHO}
    known |= {"distance": task.distance, "gap": float(own.max()), "steps": LOCAL}
    known["threshold"] = 4 * LOCAL * math.sqrt(task.smoothness * own.max())
    gamma = task.smoothness * math.sqrt(task.distance)
    target = 1.1 * theory.clipped_error(alpha=1e9, gamma=gamma, **known)
    plan = theory.clipped(target=target, clients=PRIVATE, d=32, **known)
    alpha = RHO / (2 * task.smoothness * plan.step)
    bound = theory.clipped_error(alpha=alpha, gamma=gamma, **known)
    noise = RHO * PRIVATE * math.sqrt(plan.rounds / 32)

    def make(rate):
        return algorithms.dp_fedavg(
            task.loss,
            client_rate=rate,
            threshold=known["threshold"],
            noise_multiplier=noise,
            cohort=PRIVATE,
        )

    sizes = {"steps": LOCAL, "clients": PRIVATE, "d": 32, "seeds": SEEDS}
    walked = known_problems.walk(make, np.full(plan.rounds, plan.step), **sizes)
    share = RHO * LOCAL / alpha
    found = _left_side(task, walked[:, :-1], plan.step, share, known["threshold"])
    begin = float(found[0, 0])
    means = running_mean(found).mean(0)
    known |= {"alpha": alpha, "step": plan.step, "z": noise}
    names = "none", "quadratics", known, "left side of (6)"
    return row("Das Theorem 2", *names, means, start=begin, bound=bound)


def _left_side(
    task: Quadratics, walked: np.ndarray, rate: float, share: float, threshold: float
) -> np.ndarray:
    """Returns what Theorem 2 bounds the mean of, at all parameters."""
    clients = jnp.arange(PRIVATE)

    def value(params):
        places = known_problems.steps_of_clients(
            task, params, rate=rate, steps=LOCAL, clients=PRIVATE
        )
        u = jnp.linalg.norm(places[:, 0] - places[:, -1], axis=1) / rate
        losses = jax.vmap(task.loss, (None, 0))
        worse = losses(params, clients) - losses(task.optimum, clients)
        whole = (2 - share - share**2) * worse
        cut = 3 * threshold * u / (8 * task.smoothness * LOCAL**2)
        return jnp.mean(jnp.where(u <= threshold, whole, cut))

    return over_walks(value, walked)


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
        )
    known: dict[str, Any] = {"smoothness": task.smoothness, "condition": CONDITION}
    known |= {"clients": CLIENTS, "d": D, "cols": COLS, "server_rate": float(CLIENTS)}
    for objective in ("pl", "nonconvex"):
        plan = theory.fedsketch(
            *(objective, variant),
            target=TARGET,
            delta=DELTA,
            tracking=tracking,
            **known,
        )
        rows = math.ceil(math.log(D * plan.rounds / DELTA))
        walked = _walk(task, variant, plan, rows, tracking=tracking)
        said = known | {"rows": rows, "noise": NOISE, "tau": plan.local_steps}
        said |= {"step": plan.step}
        yield _promised(task, walked, plan, objective, said)


def _promised(
    task: Quadratics,
    walked: np.ndarray,
    plan: theory.Bound,
    objective: str,
    said: dict[str, Any],
) -> Row:
    name, _, variant = plan.theorem.replace(" et al., Theorem", "").rpartition(", ")
    if objective == "pl":
        curve = over_walks(task.excess, walked).mean(0)[1:]
        quantity, start = "E f(w) - f*", task.start
    else:
        hessian = task.matrices.mean(0)

        def square(params):
            return jnp.sum((hessian @ (params - task.optimum)) ** 2)

        found = over_walks(square, walked)
        curve = running_mean(found[:, :-1]).mean(0)
        quantity, start = "mean |grad f|^2", float(found[0, 0])
    names = variant, "quadratics", said, quantity
    return row(name, *names, curve, start=start, bound=TARGET)


def _walk(
    task: Quadratics, variant: str, plan: theory.Bound, rows: int, *, tracking: bool
) -> np.ndarray:
    """Returns walks whose gradients have noise of the variance NOISE^2."""
    op, tau = sketch.count_sketch(COLS, rows), plan.local_steps
    common = {"sketch": op, "server_rate": float(CLIENTS), "query": variant}

    def loss(params, drawn):
        return task.loss(params, drawn[0].astype(jnp.int32)) + drawn[1:] @ params

    def make(rate):
        given = {"client_rate": rate, **common}
        if tracking:  # with the gain as printed
            return algorithms.fedsketchgate(loss, gain=1 / tau, **given)
        return algorithms.fedsketch(loss, **given)

    def batch(client, key):
        noise = jax.random.normal(key, (tau, D)) * NOISE / D**0.5
        return jnp.concatenate([jnp.full((tau, 1), client, jnp.float32), noise], 1)

    sizes = {"steps": tau, "clients": CLIENTS, "d": D, "seeds": SEEDS}
    rates = np.full(plan.rounds, plan.step)
    return known_problems.walk(make, rates, batch=batch, **sizes)
