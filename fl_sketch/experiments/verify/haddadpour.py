"""Haddadpour et al.'s theorems and measurements: 5 to 7, Corollary 5, and Theorem 3.

Theorem 3 states orders. With constants of one it is a bound that may fail, and a ratio
below 1 means that a constant is larger.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp

from fl_sketch import algorithms, sketch, theory
from fl_sketch.experiments.verify import known_problems, walks
from fl_sketch.experiments.verify.known_problems import Quadratics
from fl_sketch.experiments.verify.rows import Row, row
from fl_sketch.theory import Bound, Constants

SEEDS = range(4)
D, COLS, CLIENTS, NOISE, STEPS = 64, 16, 4, 0.3, 4
CONDITION, DELTA = 5.0, 1e-3
TARGETS = {"nonconvex": 0.03, "pl": 0.03, "convex": 0.1}
SERVER_RATES = {"nonconvex": 4.0, "pl": 6.0}  # of Theorem 3: p, and sqrt(p tau)
VALUES = "fresh"  # with which HEAPRIX is unbiased
NAMES = {"nonconvex": "Haddadpour 5", "pl": "Haddadpour 6", "convex": "Haddadpour 7"}


def fedsketch(variant: str) -> Iterator[Row]:
    """Yields the rows of Theorems 5 to 7.

    Args:
      variant: the way to read sketches: "privix" or "heaprix".
    """
    task = _problem(same=True)
    for objective, name in NAMES.items():
        kind = {"objective": objective, "variant": variant, "cols": COLS}
        bound = theory.fedsketch(_constants(task), TARGETS[objective], **kind)
        op = _operator(bound)

        def make(loss, rate, op=op):
            rates = {"client_rate": rate, "server_rate": float(CLIENTS)}
            return algorithms.fedsketch(
                loss, sketch=op, query=variant, values=VALUES, **rates
            )

        yield _row(f"{name}, {objective}", task, objective, bound, make, variant)


def fedavg() -> Row:
    """Returns the row of Corollary 5."""
    task, objective = _problem(same=True), "nonconvex"
    bound = theory.fedavg_nonconvex(_constants(task), TARGETS[objective])

    def make(loss, rate):
        return algorithms.fedavg(loss, client_rate=rate, server_rate=1.0)

    return _row("Haddadpour Corollary 5", task, objective, bound, make, "none")


def fedsketchgate(variant: str) -> Iterator[Row]:
    """Yields the rows of Theorem 3, with the gain of control variates as printed."""
    task = _problem(same=False)
    for objective in ("pl", "nonconvex"):
        kind = {"objective": objective, "variant": variant, "cols": COLS}
        constants = replace(_constants(task), server_rate=SERVER_RATES[objective])
        bound = theory.fedsketchgate(constants, TARGETS[objective], **kind)
        op, chosen = _operator(bound), bound.constants

        def make(loss, rate, op=op, chosen=chosen):
            rates = {"client_rate": rate, "server_rate": chosen.server_rate}
            ways = {"query": variant, "values": VALUES, "gain": 1 / chosen.steps}
            return algorithms.fedsketchgate(loss, sketch=op, **ways, **rates)

        yield _row(f"Haddadpour 3, {objective}", task, objective, bound, make, variant)


def _problem(*, same: bool) -> Quadratics:
    """Returns quadratics, the same for all clients or not."""
    task = known_problems.quadratics(
        d=D, clients=CLIENTS, condition=CONDITION, seed=0, apart=0.5
    )
    if not same:
        return task
    return task._replace(
        matrices=jnp.broadcast_to(task.matrices[:1], task.matrices.shape),
        optima=jnp.broadcast_to(task.optima[:1], task.optima.shape),
        optimum=task.optima[0],
        spread=0.0,
    )


def _constants(task: Quadratics) -> Constants:
    run = {"server_rate": float(CLIENTS), "delta": DELTA}
    return replace(task.constants, steps=STEPS, noise=NOISE, **run)


def _operator(bound: Bound) -> sketch.Sketch:
    """Returns the count sketch that the theorem asks for."""
    return sketch.count_sketch(COLS, _rows(bound))


def _rows(bound: Bound) -> int:
    return math.ceil(math.log(D * bound.rounds / DELTA))


def _row(
    name: str,
    task: Quadratics,
    objective: str,
    bound: Bound,
    make: Callable,
    variant: str,
) -> Row:
    """Returns the row of a bound on the excess, or if not convex on the gradient.

    `make` is `(loss, rate) -> algorithm`.
    """
    walked = _walk(task, bound.constants, make)
    sketched = {"operator": variant, "noise": NOISE}
    if variant != "none":
        sketched |= {"cols": COLS, "rows": _rows(bound)}
    if variant == "heaprix":
        sketched["values"] = VALUES
    if objective != "nonconvex":
        curve = walks.over_walks(task.excess, walked).mean(0)[1:]
        named = name, "quadratics", "E f(w) - f*", bound, curve, task.constants.start
        return row(*named, **sketched)
    hessian = task.matrices.mean(0)
    squares = walks.squares(lambda x: hessian @ (x - task.optimum), walked)
    curve, start = walks.running_mean(squares[:, :-1]).mean(0), float(squares[0, 0])
    return row(name, "quadratics", "mean |grad f|^2", bound, curve, start, **sketched)


def _walk(task: Quadratics, c: Constants, make: Callable):
    """Returns walks whose gradients have noise of the variance NOISE^2.

    Losses have the penalty of the constants, if these have one.
    """
    penalty = 0.0 if math.isnan(c.penalty) else c.penalty

    def loss(params, drawn):
        whole = task.loss(params, drawn[0].astype(jnp.int32)) + drawn[1:] @ params
        return whole + penalty / 2 * params @ params

    def batch(client, key):
        noise = jax.random.normal(key, (c.steps, D)) * NOISE / D**0.5
        number = jnp.full((c.steps, 1), client, jnp.float32)
        return jnp.concatenate([number, noise], 1)

    return walks.walk(lambda rate: make(loss, rate), c, SEEDS, batch=batch)
