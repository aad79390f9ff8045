"""Song et al.'s theorems and measurements.

A theorem is run with its own step and for its own number of rounds, on a problem whose
constants are known, and what it bounds is measured.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import algorithms, theory
from fl_sketch.experiments.verify import known_problems, walks
from fl_sketch.experiments.verify.known_problems import Problem
from fl_sketch.experiments.verify.rows import Row, row
from fl_sketch.theory import Bound

SEEDS = range(8)
D, B, CLIENTS, STEPS = 32, 16, 4, 4


def song(operator: str) -> Iterator[Row]:
    """Yields the rows of Song et al.'s theorems for a sketch operator.

    They are E.1, E.2, 5.1 and 5.3 for convex losses, and then E.3 and G.2.
    """
    task = known_problems.quadratics(
        d=D, clients=CLIENTS, condition=5.0, seed=0, apart=0.5
    )
    start, names = task.constants.start, ("E f(w) - f*", "E f(average) - f*")
    for name, theorem, steps, average in (
        ("E.1", theory.one_step_strongly_convex, 1, False),
        ("E.2", theory.one_step_convex, 1, True),
        ("5.1, 5.2", theory.strongly_convex, STEPS, False),
        ("5.3, 5.4", theory.convex, STEPS, True),
    ):
        bound, places = _walk(task, theorem, operator, steps, start)
        if average and steps > 1:
            places = walks.averages_of_rounds(task, places, bound.constants)
        if average:
            places = walks.running_mean(places)
        curve = walks.over_walks(task.excess, places).mean(0)[-bound.rounds :]
        quantity = names[average]
        yield row(f"Song {name}", "quadratics", quantity, bound, curve, start)
    task = known_problems.wells(d=D, clients=CLIENTS, decay=0.5, seed=0)
    start = float(walks.squares(task.gradient, np.zeros((1, 1, D)))[0, 0])
    for name, theorem, steps in (
        ("E.3", theory.one_step_nonconvex, 1),
        ("G.2, corrected", theory.nonconvex, STEPS),
    ):
        bound, walked = _walk(task, theorem, operator, steps, start)
        squares = walks.squares(task.gradient, walked).mean(0, keepdims=True)
        curve = walks.running_mean(squares)[0, 1:]
        yield row(f"Song {name}", "wells", "mean E |grad f|^2", bound, curve, start)


def inversion() -> Iterator[Row]:
    """Yields the rows of Theorems K.2 and K.3, on an attacker's descent to an input.

    K.2 bounds the distance at the start, by the objective there.
    """
    task = known_problems.ripples(d=D, least=0.9, bend=0.02, seed=0)
    constants = task.constants
    bound = theory.input_descent(constants, target=constants.distance / 4)

    @jax.jit
    def descent(x, step):
        def down(x, _):
            x = x - step * jax.grad(task.objective)(x)
            return x, x

        return jax.lax.scan(down, x, length=bound.rounds)[1]

    places = np.asarray(descent(jnp.zeros(D), bound.step), np.float64)
    curve = np.sum((places - np.asarray(task.target)) ** 2, axis=1)
    names, start = ("ripples", "|x - x*|^2"), constants.distance
    yield row("Song K.3, corrected", *names, bound, curve, start)
    unique = theory.unique_input(constants)
    found = row("Song K.2", *names, unique, np.array([start]), math.nan)
    yield found._replace(rounds=0, needed=math.nan)


def _walk(
    task: Problem, theorem: Callable[..., Bound], operator: str, steps: int, start
) -> tuple[Bound, np.ndarray]:
    """Returns what a theorem gives for a quarter of the start, and walks by it."""
    constants = replace(task.constants, operator=operator, b=B, steps=steps)
    bound, op = theorem(constants, target=start / 4), walks.sketch_of(operator, D, B)

    def make(rate):
        return algorithms.iterative_sketching(task.loss, sketch=op, client_rate=rate)

    return bound, walks.walk(make, bound.constants, SEEDS)
