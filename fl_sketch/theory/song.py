"""Song et al.: iterative sketching, Theorems 5.1 to 5.4 and G.2, and appendix E.

The theorems of appendix E are about one local step. The mean of the clients' sketches
is then the sketch of the gradient of f, so that only f has to be smooth or convex,
clients may differ, and there is no drift: steps are up to 8 times longer. Their step is
eta_global eta_local; with a server rate of 1 it is that of the clients.
"""

import math
from dataclasses import replace

from fl_sketch.core import validate
from fl_sketch.theory.assumptions import (
    BARE,
    BOUNDED_BELOW,
    CONVEX,
    EVERYONE,
    FULL_GRADIENTS,
    PLAIN,
    SMOOTH,
    Assumption,
    server_rate,
    step_most,
)
from fl_sketch.theory.bound import Bound, Constants, Theorem

# a of Song's Table 1: alpha = a d / b.
EMBEDDING = {
    "gaussian": 3,
    "srht": 2,
    "ams": 2,
    "count_sketch": 3,
    "sparse_embedding": 2,
}
FRESH = Assumption(
    "fresh_sketch",
    "a fresh sketch every round, independent of all others (Theorem 4.2)",
)
COMMON = (FULL_GRADIENTS, PLAIN, EVERYONE, BARE, FRESH)
SECTION_5 = (
    CONVEX._replace(text="every client's loss is convex (Assumption 3.1)"),
    SMOOTH._replace(text="every client's loss is L-smooth (Assumption 3.1)"),
    *COMMON,
    server_rate(1.0),
)
F_SMOOTH = SMOOTH._replace(text="f is L-smooth")
AVERAGE = "f(average) - f(w*) for the average of all parameters on the way"
MEAN = "the mean of E |grad f|^2 over the parameters of all rounds"


def alpha(operator: str, d: int, b: int) -> float:
    """Returns alpha with `E|R^T R x|^2 <= (1 + alpha) |x|^2`, as Song's Theorem 4.2.

    Table 1 for the operators of the paper; exactly d/b - 1 for uniform sampling, which
    is not in it, and 0 for the identity. The exact values are in
    `tests/oracles/closed_forms.py` and are smaller.
    """
    validate.one_of((*EMBEDDING, "uniform_sampling", "identity"), operator=operator)
    validate.at_least_one(d=d, b=b)
    if operator == "uniform_sampling":
        return max(d / b - 1, 0.0)
    return EMBEDDING.get(operator, 0) * d / b


def grown(constants: Constants) -> float:
    """Returns 1 + alpha."""
    c = constants
    return 1 + (alpha(c.operator, c.d, c.b) if math.isnan(c.alpha) else c.alpha)


def strongly_convex(constants: Constants, target: float | None = None) -> Bound:
    """Returns the bound on E f(w) - f(w*) of Song's Theorem 5.1 (formally, F.9).

    `L/2 |w0 - w*|^2 e^(-mu eta T) + 4 eta^2 L^2 K^3 sigma^2 / mu`, for steps up to
    1 / (8 (1 + alpha) L K). For a target it is Corollary 5.2: the largest step for
    which the drift, the second term, is at most half the target, and the rounds after
    which the rest is (the proof of Theorem F.10). One local step is best, and
    `one_step_strongly_convex` better still. For a target not too small the rounds grow
    like 1 + alpha ~ d/b and the bits, rounds times b, do not grow as b shrinks.
    """
    theorem = Theorem(
        "Song et al., Theorem 5.1 and Corollary 5.2",
        ("smoothness", "convexity", "distance", "spread", "steps"),
        (*SECTION_5, _strongly("every client's loss", constants)),
    )
    c = theorem.require(constants, target)
    theorem.at_most(c.smoothness, convexity=c.convexity)
    step = longest = 1 / (8 * grown(c) * c.smoothness * c.steps)
    if target is not None:
        if c.spread > 0:
            drift = math.sqrt(c.convexity * target / (2 * c.steps * c.spread))
            step = min(step, drift / (2 * c.smoothness * c.steps))
        logarithm = max(math.log(c.smoothness * c.distance / target), 0)
        rounds = max(1, math.ceil(logarithm / (c.convexity * step)))
        c = replace(c, step=step, rounds=rounds)
    theorem.require_step(c, longest)
    shrunk = c.distance * math.exp(-c.convexity * c.step * c.rounds)
    drift = 4 * c.step**2 * c.smoothness**2 * c.steps**3 * c.spread / c.convexity
    error = c.smoothness / 2 * shrunk + drift
    return theorem.bound(c, error, step_most(longest))


def convex(constants: Constants, target: float | None = None) -> Bound:
    """Returns the bound on E f(average) - f(w*) of Song's Theorem 5.3 (formally, F.7).

    `4 |w0 - w*|^2 / (eta K T) + 32 eta^2 L K^2 sigma^2`, for the average of all
    clients' parameters before each of their K T steps, and the steps of Theorem 5.1.
    For a target it is Corollary 5.4: both terms are at most half of it (the proof of
    Theorem F.8).
    """
    theorem = Theorem(
        "Song et al., Theorem 5.3 and Corollary 5.4",
        ("smoothness", "distance", "spread", "steps"),
        SECTION_5,
        AVERAGE,
    )
    c = theorem.require(constants, target)
    step = longest = 1 / (8 * grown(c) * c.smoothness * c.steps)
    if target is not None:
        if c.spread > 0:
            calm = math.sqrt(target / (c.smoothness * c.spread)) / (8 * c.steps)
            step = min(step, calm)
        rounds = math.ceil(8 * c.distance / (step * c.steps * target))
        c = replace(c, step=step, rounds=rounds)
    theorem.require_step(c, longest)
    theorem.at_least(1, rounds=c.rounds)
    first = 4 * c.distance / (c.step * c.steps * c.rounds)
    drift = 32 * c.step**2 * c.smoothness * c.steps**2 * c.spread
    return theorem.bound(c, first + drift, step_most(longest))


def nonconvex(constants: Constants, target: float | None = None) -> Bound:
    """Returns the bound on the mean `E |grad f(w)|^2` of Song's Theorem G.2, corrected.

    With gamma for the server's rate it is
    `start / ((T + 1) gamma eta K) + L K G^2 eta (1 + gamma (1 + alpha) / 2)`, for the
    mean over w^0 to w^T, and steps up to 1 / (2 L K), which Lemma G.1 asks for. For a
    target both terms are at most half of it. As printed, without the factor eta K of
    the descent, it is false (results/theory/details.md).
    """
    theorem = Theorem(
        "Song et al., Theorem G.2, with the factor K eta that its print loses",
        ("smoothness", "gradient", "start", "steps", "server_rate"),
        (
            SMOOTH,
            Assumption("gradient", "gradients are at most G long, anywhere"),
            *COMMON,
            server_rate(constants.server_rate),
        ),
        MEAN,
    )
    c = theorem.require(constants, target)
    longest = 1 / (2 * c.smoothness * c.steps)
    noise = 1 + c.server_rate * grown(c) / 2
    if target is not None:
        calm = target / (2 * c.smoothness * c.steps * c.gradient**2 * noise)
        step = min(longest, calm)
        terms = math.ceil(2 * c.start / (target * c.server_rate * step * c.steps))
        c = replace(c, step=step, rounds=max(1, terms - 1))
    theorem.require_step(c, longest)
    first = c.start / ((c.rounds + 1) * c.server_rate * c.step * c.steps)
    second = c.smoothness * c.steps * c.gradient**2 * c.step * noise
    return theorem.bound(c, first + second, step_most(longest))


def one_step_strongly_convex(
    constants: Constants, target: float | None = None
) -> Bound:
    """Returns the bound on E f(w) - f(w*) of Song's Theorem E.1.

    `(1 - mu eta)^T (f(w0) - f(w*))` after T rounds, by the recurrence of its proof. L/2
    `|w0 - w*|^2` may stand for f(w0) - f(w*), the constant `start`. For a target it has
    the largest step, 1 / ((1 + alpha) L), which is the best by the bound.

    >>> constants = Constants(smoothness=1.0, convexity=0.1, start=0.5, alpha=12.0)
    >>> one_step_strongly_convex(constants, target=1e-6).rounds
    1700
    """
    theorem = Theorem(
        "Song et al., Theorem E.1",
        ("smoothness", "convexity", "start"),
        (F_SMOOTH, _strongly("f", constants), *COMMON),
    )
    c = theorem.require(constants, target)
    longest = 1 / (grown(c) * c.smoothness)
    theorem.at_most(c.smoothness, convexity=c.convexity)
    if target is not None:
        rounds, fraction = 1, target / c.start
        if c.convexity * longest < 1 and fraction < 1:
            rounds = math.ceil(math.log(fraction) / math.log1p(-c.convexity * longest))
        c = replace(c, step=longest, rounds=rounds)
    theorem.require_step(c, longest)
    theorem.at_most(1, steps=c.steps)
    error = (1 - c.convexity * min(c.step, longest)) ** c.rounds * c.start
    return theorem.bound(c, error, _product(longest))


def one_step_convex(constants: Constants, target: float | None = None) -> Bound:
    """Returns the bound on E f(average) - f(w*) of Song's Theorem E.2.

    `|w0 - w*|^2 / (eta (T + 1))`, for the average of the parameters w^0 to w^T, and
    half the steps of Theorem E.1.
    """
    theorem = Theorem(
        "Song et al., Theorem E.2",
        ("smoothness", "distance"),
        (CONVEX._replace(text="f is convex"), F_SMOOTH, *COMMON),
        AVERAGE,
    )
    return _falling(theorem, constants, target, constants.distance, 2)


def one_step_nonconvex(constants: Constants, target: float | None = None) -> Bound:
    """Returns the bound on the mean `E |grad f(w)|^2` of Song's Theorem E.3.

    `2 (f(w0) - f(w*)) / (eta (T + 1))`, for the mean over w^0 to w^T, and so for the
    smallest, of which the paper states it.
    """
    theorem = Theorem(
        "Song et al., Theorem E.3",
        ("smoothness", "start"),
        (F_SMOOTH, BOUNDED_BELOW, *COMMON),
        MEAN,
    )
    return _falling(theorem, constants, target, 2 * constants.start, 1)


def _falling(
    theorem: Theorem,
    constants: Constants,
    target: float | None,
    first: float,
    part: int,
) -> Bound:
    """Returns the bound `first` / (eta (T + 1)), for a target with the largest step.

    That is a `part` of 1 / ((1 + alpha) L).
    """
    c = theorem.require(constants, target)
    longest = 1 / (part * grown(c) * c.smoothness)
    if target is not None:
        rounds = max(1, math.ceil(first / (longest * target)) - 1)
        c = replace(c, step=longest, rounds=rounds)
    theorem.require_step(c, longest)
    theorem.at_most(1, steps=c.steps)
    error = first / (c.step * (c.rounds + 1))
    return theorem.bound(c, error, _product(longest))


def _strongly(whose: str, c: Constants) -> Assumption:
    text = f"{whose} is mu-strongly convex, mu = {c.convexity:g}"
    return Assumption("strongly_convex", text, c.convexity)


def _product(longest: float) -> Assumption:
    """Returns the assumption of appendix E on eta_global eta_local."""
    text = f"the step size, of clients times server, is at most {longest:.4g}"
    return Assumption("step_product", text, longest)


PROMISES = {
    "strongly_convex": (one_step_strongly_convex, strongly_convex),
    "convex": (one_step_convex, convex),
    "nonconvex": (one_step_nonconvex, nonconvex),
}


def iterative_sketching(
    constants: Constants, objective: str, target: float | None = None
) -> Bound:
    """Returns the bound of appendix E for one local step, else of section 5 or G.

    An objective is "strongly_convex", "convex" or "nonconvex". The error is f - f*, or
    for nonconvex losses the mean `|grad f|^2`.
    """
    validate.one_of((*PROMISES,), objective=objective)
    one_step, several = PROMISES[objective]
    return (one_step if constants.steps == 1 else several)(constants, target)
