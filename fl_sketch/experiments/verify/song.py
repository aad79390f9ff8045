"""Song et al.'s theorems, each beside a measurement.

A theorem is run as it says, with its own step and for its own number of rounds, on a
problem whose constants are known, and what it bounds is measured.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fl_sketch import algorithms, theory
from fl_sketch.core.protocols import Algorithm
from fl_sketch.experiments.verify import known_problems
from fl_sketch.experiments.verify.known_problems import Problem, Quadratics
from fl_sketch.experiments.verify.table import (
    Row,
    over_walks,
    row,
    running_mean,
    sketch_of,
    squares,
)

SEEDS = range(8)
D, B, CLIENTS, STEPS = 32, 16, 4, 4


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


def _walk(
    operator: str, task: Problem, step: float, rounds: int, steps: int
) -> np.ndarray:
    """Returns walks of iterative sketching with a server rate of 1."""

    def make(rate) -> Algorithm:
        op = sketch_of(operator, D, B)
        return algorithms.iterative_sketching(task.loss, sketch=op, client_rate=rate)

    sizes = {"steps": steps, "clients": CLIENTS, "d": D, "seeds": SEEDS}
    return known_problems.walk(make, np.full(rounds, step), **sizes)
