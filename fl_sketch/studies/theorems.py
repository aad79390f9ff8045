"""Every theorem of `fl_sketch.theory` beside a measurement: Song et al.'s.

A theorem is run as it says, with its own step and for its own number of rounds, on a
problem whose constants are known (`known_problems`), and what it bounds is measured.
Those of the other papers are in `theorems_of_chen` and `theorems_of_others`.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import algorithms, theory
from fl_sketch.algorithms import catalog
from fl_sketch.protocols import Algorithm, Sketch
from fl_sketch.studies import known_problems
from fl_sketch.studies.known_problems import Problem, Quadratics, Wells

SEEDS = range(8)
D, B, CLIENTS, STEPS = 32, 16, 4, 4
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


def song(operator: str) -> Iterator[Row]:
    """Yields the rows of Song et al.'s theorems.

    Args:
      operator: the name of the sketch operator.
    """
    alpha = theory.alpha(operator, D, B)
    each = {"alpha": alpha, "clients": CLIENTS, "b": B}
    convex = known_problems.quadratics(
        d=D, clients=CLIENTS, condition=5.0, seed=0, apart=0.5
    )
    yield from _one_step(operator, convex, each)
    yield from _several_steps(operator, convex, each)
    yield from _nonconvex(operator, each)


def _one_step(operator: str, task: Quadratics, each: dict[str, Any]) -> Iterator[Row]:
    """Yields the rows of Theorems E.1 and E.2."""
    smooth, distance, target = task.smoothness, task.distance, task.start / 4
    given: dict[str, Any] = {"smoothness": smooth, "start": task.start}
    given |= {"convexity": task.convexity}
    plan = theory.one_step_strongly_convex(target=target, **given, **each)
    bound = theory.one_step_strongly_convex_error(**_at(plan, each), **given)
    walked = _walk(operator, task, plan.step, plan.rounds, 1)
    last = over_walks(task.excess, walked).mean(0)[1:]
    known = {"K": 1, "step": plan.step, **each, **given}
    names = "quadratics", known, "E f(w) - f*"
    yield row("Song E.1", operator, *names, last, start=task.start, bound=bound)

    given = {"smoothness": smooth, "distance": distance}
    plan = theory.one_step_convex(target=target, **given, **each)
    bound = theory.one_step_convex_error(**_at(plan, each), **given)
    walked = _walk(operator, task, plan.step, plan.rounds, 1)
    means = over_walks(task.excess, running_mean(walked)).mean(0)[1:]
    known = {"K": 1, "step": plan.step, **each, **given}
    names = "quadratics", known, "E f(average) - f*"
    yield row("Song E.2", operator, *names, means, start=task.start, bound=bound)


def _several_steps(
    operator: str, task: Quadratics, each: dict[str, Any]
) -> Iterator[Row]:
    """Yields the rows of Theorems 5.1 and 5.3."""
    given: dict[str, Any] = {"smoothness": task.smoothness, "steps": STEPS}
    given |= {"distance": task.distance, "spread": task.spread}
    strong: dict[str, Any] = given | {"convexity": task.convexity}
    target = task.start / 4
    plan = theory.strongly_convex(target=target, **strong, **each)
    asked: dict[str, Any] = {
        "step": plan.step,
        "rounds": plan.rounds,
        "alpha": each["alpha"],
    }
    bound = theory.strongly_convex_error(**asked, **strong)
    walked = _walk(operator, task, plan.step, plan.rounds, STEPS)
    last = over_walks(task.excess, walked).mean(0)[1:]
    known = {"step": plan.step, **each, **strong}
    names = "quadratics", known, "E f(w) - f*"
    yield row("Song 5.1, 5.2", operator, *names, last, start=task.start, bound=bound)

    plan = theory.convex(target=target, **given, **each)
    asked = _at(plan, each)
    bound = theory.convex_error(**asked, **given)
    walked = _walk(operator, task, plan.step, plan.rounds, STEPS)
    of_rounds = known_problems.averages_of_rounds(
        task, walked, rate=plan.step, steps=STEPS, clients=CLIENTS
    )
    means = over_walks(task.excess, running_mean(of_rounds)).mean(0)
    known = {"step": plan.step, **each, **given}
    names = "quadratics", known, "E f(average) - f*"
    yield row("Song 5.3, 5.4", operator, *names, means, start=task.start, bound=bound)


def _nonconvex(operator: str, each: dict[str, Any]) -> Iterator[Row]:
    """Yields the rows of Theorems E.3 and G.2."""
    task = known_problems.wells(d=D, clients=CLIENTS, decay=0.5, seed=0)
    given: dict[str, Any] = {"smoothness": task.smoothness, "start": task.start}
    begin = float(squares(task, np.zeros((1, 1, D)))[0, 0])
    plan = theory.one_step_nonconvex(target=begin / 4, **given, **each)
    bound = theory.one_step_nonconvex_error(**_at(plan, each), **given)
    walked = _walk(operator, task, plan.step, plan.rounds, 1)
    means = running_mean(squares(task, walked).mean(0, keepdims=True))[0, 1:]
    known = {"K": 1, "step": plan.step, **each, **given}
    names = "wells", known, "mean E |grad f|^2"
    yield row("Song E.3", operator, *names, means, start=begin, bound=bound)

    given |= {"gradient": task.gradient, "steps": STEPS}
    plan = theory.nonconvex(target=begin / 4, **given, **each)
    asked: dict[str, Any] = {
        "step": plan.step,
        "rounds": plan.rounds,
        "alpha": each["alpha"],
    }
    bound = theory.nonconvex_error(**asked, **given)
    walked = _walk(operator, task, plan.step, plan.rounds, STEPS)
    means = running_mean(squares(task, walked).mean(0, keepdims=True))[0, 1:]
    known = {"step": plan.step, **each, **given}
    names = "wells", known, "mean E |grad f|^2"
    yield row("Song G.2, corrected", operator, *names, means, start=begin, bound=bound)


def _at(plan: theory.Bound, each: dict[str, Any]) -> dict[str, Any]:
    """Returns where a bound is to be worked out: at what was planned."""
    return {"step": plan.step, "rounds": plan.rounds, "alpha": each["alpha"]}


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


def _walk(
    operator: str, task: Problem, step: float, rounds: int, steps: int
) -> np.ndarray:
    """Returns walks of iterative sketching with a server rate of 1."""

    def make(rate) -> Algorithm:
        op = sketch_of(operator, D, B)
        return algorithms.iterative_sketching(task.loss, sketch=op, client_rate=rate)

    sizes = {"steps": steps, "clients": CLIENTS, "d": D, "seeds": SEEDS}
    return known_problems.walk(make, np.full(rounds, step), **sizes)


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
