"""Das et al.: DP-FedAvg with clipping, Theorems 2 and 3, and with normalisation, 4.

Losses are convex and smooth. A round ends with u_i, the sum of a client's gradients,
clipped to C or scaled to the length C. With s = rho E / alpha, errors are::

  rho (C/E (L |w0 - w*|^2 / gamma + gamma / L) + h / alpha)

for a step of rho / (2 alpha L) and 2 alpha gamma / (C rho^2) rounds, where h is 3 E
Delta / 2 for clipping and C^2 / (2 L E) for normalisation. Delta is the largest of the
clients' Delta_i, for which the paper has their mean. `gamma = L |w0 - w*|` makes the
first term least. More rounds cannot lower it: noise grows with them. Theorems 5 and 6
of the appendix are Theorems 2 and 4 with alpha written as rounds. In the paper rho is
sqrt(q d log(1 / delta)) / (n epsilon).

Equation 23 of the proofs, `|mean of a cohort|^2 <= mean of |.|^2`, needs a sum that is
divided by the size of its cohort. The paper's cohorts are Poisson's, and its sum is
divided by the mean size r: for equal updates of n clients the left side is
1 + 1/r - 1/n times the right one.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fl_sketch.theory.assumptions import (
    CONVEX,
    FULL_GRADIENTS,
    PLAIN,
    SMOOTH,
    Assumption,
    server_rate,
    step_is,
)
from fl_sketch.theory.bound import Bound, Constants, Theorem, Unreachable

NEEDS = ("rho", "smoothness", "distance", "threshold", "steps", "gap")
COMMON = (
    CONVEX,
    SMOOTH,
    FULL_GRADIENTS,
    PLAIN,
    server_rate(1.0),
    Assumption(
        "fixed_cohorts",
        "cohorts have a fixed size, or everyone takes part: with Poisson cohorts "
        "equation 23 fails by up to a part 1/r - 1/n",
    ),
)
ITERATE = "; at the parameters before a round drawn at random"
THEOREM_2 = Theorem(
    "Das et al., Theorem 2",
    NEEDS,
    COMMON,
    "the mean over clients of 5/4 to 2 times f_i(w) - f_i(w*) where nothing is "
    f"clipped, and of 3 C |u_i| / (8 L E^2) where it is{ITERATE}",
)
THEOREM_3 = Theorem(
    "Das et al., Theorem 3",
    NEEDS,
    COMMON,
    "the mean over clients of the smaller of f_i(w) - f_i(w*) and "
    f"0.0877 C / (E L) |grad f_i(w)|{ITERATE}",
)
THEOREM_4 = Theorem(
    "Das et al., Theorem 4",
    NEEDS,
    COMMON,
    "the mean over clients of C / |u_i| times 2 (f_i(w) - f_i(w*)) - "
    "s^2 (f_i(w) - min f_i) where |u_i| <= C, and of 3 C |u_i| / (8 L E^2) "
    f"elsewhere, for s = rho E / alpha{ITERATE}",
)
PROPOSITION_1 = Theorem(
    "Das et al., Proposition 1",
    ("rho", "smoothness", "distance", "steps", "gap", "gradient", "convexity"),
    (
        *COMMON,
        Assumption(
            "gradient", "where clients take steps, gradients are at most G long"
        ),
        Assumption(
            "shrinking",
            "where clients take steps, a step of eta changes gradients by eta lambda "
            "of their length or more (Assumption 1)",
        ),
    ),
    f"f(w) - f(w*){ITERATE}",
)
OF_GRADIENT = 3 * math.sqrt(7 / 32) / 16  # of C / (E L) |grad f_i(w)| in Theorem 3


def clipped_error(constants: Constants, *, alpha: float, gamma: float) -> float:
    """Returns the right side of Theorem 2, A + B.

    Its left side is a mean over clients and rounds. A client i that is not clipped
    counts (2 - s - s^2) (f_i(w) - f_i(w*)), and one that is counts `3 C |u_i| / (8 L
    E^2)`. In B every client counts as not clipped, and with the largest Delta_i, which
    is its most.

    Args:
      constants: the constants of the run; E is their `steps`.
      alpha: the number in the step rho / (2 alpha L), at least 1 and 2 rho E.
      gamma: the number in the choice of 2 alpha gamma / (C rho^2) rounds.
    """
    return _error(THEOREM_2, constants, alpha, gamma, _of_clipping)


def normalised_error(constants: Constants, *, alpha: float, gamma: float) -> float:
    """Returns the right side of Theorem 4 (equation 14) without one term.

    Its left side is a mean over clients and rounds. A client i with `|u_i| > C` counts
    as in Theorem 2. Others count `C / |u_i|` times (2 - s^2) (f_i(w) - f_i(w*)), and on
    the right s^2 Delta_i. Before a run nothing bounds `1 / |u_i|`, so this term counts
    on the left here: together they are 2 (f_i(w) - f_i(w*)) - s^2 (f_i(w) - min f_i).
    The arguments are those of `clipped_error`.
    """
    return _error(THEOREM_4, constants, alpha, gamma, _of_scaling)


def clipped(constants: Constants, target: float) -> Bound:
    """Returns step, rounds and bits to an error <= target, Das et al.'s Theorem 2.

    alpha is the smallest with A + B <= target.
    """
    return _bound(THEOREM_2, constants, target, _of_clipping)


def clipped_minimum(constants: Constants, target: float) -> Bound:
    """Returns step, rounds and bits to an error <= target, Das et al.'s Theorem 3.

    Its constants are those of its proof: Theorem 2 is divided by 2 - s - s^2, which is
    5/4 to 2, and `|u_i|` is at least `sqrt(7/32) E |grad f_i(w)|` (equation 65). So the
    bound is 4/5 of that of Theorem 2.
    """
    return _bound(THEOREM_3, constants, target, _of_clipping, part=4 / 5)


def normalised(constants: Constants, target: float) -> Bound:
    """Returns step, rounds and bits to an error <= target, Das et al.'s Theorem 4.

    alpha is the smallest for which `normalised_error` is at most the target.
    """
    return _bound(THEOREM_4, constants, target, _of_scaling)


def unclipped(constants: Constants) -> Bound:
    """Returns the threshold that clips nothing, and the bound on E f(w) - f(w*) there.

    Proposition 1, with lambda as `convexity`: C is G E (1 - 11 (E - 1) rho / 64
    (lambda / L)^2), alpha is 1, so that E <= 1 / (2 rho), and the bound is equation 8,
    4/5 of Theorem 2. Equation 11 rounds it up. Assumption 1 cannot hold for all w
    (results/theory/details.md), and the proof needs it only at the parameters of the
    run.
    """
    theorem = PROPOSITION_1
    c = theorem.require(constants)
    theorem.at_most(c.smoothness, convexity=c.convexity)
    theorem.at_most(1 / (2 * c.steps), rho=c.rho)
    shrunk = 11 * (c.steps - 1) * c.rho / 64 * (c.convexity / c.smoothness) ** 2
    c = replace(c, threshold=c.gradient * c.steps * (1 - shrunk))
    rounds = math.ceil(_rounds(c, 1))
    gamma = _gamma(c) * rounds / _rounds(c, 1)
    error = 4 / 5 * _error(theorem, c, 1, gamma, _of_clipping)
    return theorem.bound(c, error, *_assumed(c, 1), **_run(c, 1, rounds))


def _error(
    theorem: Theorem, constants: Constants, alpha: float, gamma: float, h: Callable
) -> float:
    c = theorem.require(constants)
    if not 0 < gamma < math.inf:
        msg = f"Expected gamma > 0 and finite, got gamma={gamma}."
        raise ValueError(msg)
    theorem.at_least(max(1, 2 * c.rho * c.steps), alpha=alpha)
    theorem.at_least(_least_threshold(c), threshold=c.threshold)
    return c.rho * (_initial(c, gamma) + h(c) / alpha)


def _bound(
    theorem: Theorem, constants: Constants, target: float, h: Callable, part: float = 1
) -> Bound:
    """Returns the bound for the fewest rounds; it is `part` of `_error` with `_gamma`.

    alpha is the smallest that is enough, or what makes the rounds a whole number.

    Raises:
      Unreachable: if the noise alone is above the target.
    """
    c = theorem.require(constants, target)
    start = part * c.rho * _initial(c, _gamma(c))
    if start >= target:
        msg = (
            f"Expected target > {start:.4g}, below which no number of rounds gets with "
            f"this noise ({theorem.name}), got target={target:g}."
        )
        raise Unreachable(msg)
    least = max(1, 2 * c.rho * c.steps, part * c.rho * h(c) / (target - start))
    rounds = math.ceil(_rounds(c, least))
    alpha = least * rounds / _rounds(c, least)
    error = part * _error(theorem, c, alpha, _gamma(c), h)
    return theorem.bound(c, error, *_assumed(c, alpha), **_run(c, alpha, rounds))


def _run(c: Constants, alpha: float, rounds: int) -> dict[str, Any]:
    """Returns the step, the rounds and the size of messages."""
    return {"step": c.rho / (2 * alpha * c.smoothness), "rounds": rounds, "b": c.d}


def _assumed(c: Constants, alpha: float) -> tuple[Assumption, Assumption]:
    """Returns what is assumed of the step and of the threshold."""
    least = _least_threshold(c)
    text = f"the threshold C is at least 4 E sqrt(L Delta) = {least:.4g}"
    step = step_is(c.rho / (2 * alpha * c.smoothness), "rho / (2 alpha L)")
    return step, Assumption("threshold", text, least)


def _least_threshold(c: Constants) -> float:
    return 4 * c.steps * math.sqrt(c.smoothness * c.gap)


def _rounds(c: Constants, alpha: float) -> float:
    """Returns 2 alpha gamma / (C rho^2), which need not be a whole number."""
    return 2 * alpha * _gamma(c) / (c.threshold * c.rho**2)


def _initial(c: Constants, gamma: float) -> float:
    """Returns the effect of the start, over rho."""
    pulled = c.smoothness * c.distance / gamma + gamma / c.smoothness
    return pulled * c.threshold / c.steps


def _of_clipping(c: Constants) -> float:
    """Returns h of Theorem 2, the effect of clients that differ."""
    return 3 * c.steps * c.gap / 2


def _of_scaling(c: Constants) -> float:
    """Returns h of Theorem 4, the effect of updates that never shrink."""
    return c.threshold**2 / (2 * c.smoothness * c.steps)


def _gamma(c: Constants) -> float:
    """Returns the gamma for which the effect of the start is least."""
    return c.smoothness * math.sqrt(c.distance)
