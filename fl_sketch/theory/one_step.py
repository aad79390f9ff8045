"""Song et al., appendix E: iterative sketching with one local step a round.

The mean of the clients' sketches is then the sketch of the gradient of f, so that only
f has to be smooth or convex, clients may differ as they like, and there is no drift.
The step is eta_global eta_local; with a server rate of 1 it is that of the clients.
"""

import math

from fl_sketch.core import validate
from fl_sketch.core.wire import FLOAT_BITS
from fl_sketch.theory.bound import Bound, no_more, positive
from fl_sketch.theory.song import FRESH

ONE_STEP = (
    "clients take one full gradient step, all in every round",
    "the step is that of the clients times the server rate",
    FRESH,
)


def one_step_largest(*, smoothness: float, alpha: float, convex: bool = False) -> float:
    """Returns the largest step of Theorems E.1 and E.3, 1 / ((1 + alpha) L).

    Args:
      smoothness: the smoothness L of f.
      alpha: the number that `alpha` returns for the operator.
      convex: whether it is Theorem E.2, whose largest step is half of that.
    """
    positive(smoothness=smoothness)
    return 1 / ((1 + convex) * (1 + alpha) * smoothness)


def one_step_strongly_convex_error(
    *,
    step: float,
    rounds: int,
    smoothness: float,
    convexity: float,
    start: float,
    alpha: float,
) -> float:
    """Returns the bound on E f(w) - f(w*) after some rounds, Song's Theorem E.1.

    `(1 - mu eta)^T (f(w0) - f(w*))` after T rounds, by the recurrence of its proof; the
    paper prints w^(t+1) beside the power t, which is a round less.

    Args:
      step: the step size eta.
      rounds: the number T of rounds.
      smoothness: the smoothness L of f.
      convexity: the strong convexity mu of f.
      start: f(w0) - f(w*), or no less, as L/2 `|w0 - w*|^2`.
      alpha: the number that `alpha` returns for the operator.

    Raises:
      Unreachable: for a step above `one_step_largest`, or mu above L.
    """
    positive(convexity=convexity, step=step)
    validate.in_range(0, math.inf, rounds=rounds)
    theorem = "Song et al.'s Theorem E.1"
    no_more(theorem, smoothness, convexity=convexity)
    longest = one_step_largest(smoothness=smoothness, alpha=alpha)
    no_more(theorem, longest, step=step)
    return (1 - convexity * min(step, longest)) ** rounds * start


def one_step_convex_error(
    *, step: float, rounds: int, smoothness: float, distance: float, alpha: float
) -> float:
    """Returns the bound on E f(average) - f(w*), Song's Theorem E.2.

    `|w0 - w*|^2 / (eta (T + 1))`, of the average of the parameters w^0 to w^T.

    Args:
      step: the step size eta.
      rounds: the number T of rounds.
      smoothness: the smoothness L of f.
      distance: the squared distance `|w0 - w*|^2` from the start to the optimum.
      alpha: the number that `alpha` returns for the operator.

    Raises:
      Unreachable: for a step above `one_step_largest`.
    """
    positive(step=step)
    validate.in_range(0, math.inf, rounds=rounds)
    longest = one_step_largest(smoothness=smoothness, alpha=alpha, convex=True)
    no_more("Song et al.'s Theorem E.2", longest, step=step)
    return distance / (step * (rounds + 1))


def one_step_nonconvex_error(
    *, step: float, rounds: int, smoothness: float, start: float, alpha: float
) -> float:
    """Returns the bound on the mean of `E |grad f(w)|^2`, Song's Theorem E.3.

    `2 (f(w0) - f(w*)) / (eta (T + 1))`, of the mean over w^0 to w^T, and so of the
    smallest, of which the paper states it.

    Args:
      step: the step size eta.
      rounds: the number T of rounds.
      smoothness: the smoothness L of f.
      start: f(w0) - f(w*), or no less.
      alpha: the number that `alpha` returns for the operator.

    Raises:
      Unreachable: for a step above `one_step_largest`.
    """
    positive(step=step)
    validate.in_range(0, math.inf, rounds=rounds)
    longest = one_step_largest(smoothness=smoothness, alpha=alpha)
    no_more("Song et al.'s Theorem E.3", longest, step=step)
    return 2 * start / (step * (rounds + 1))


def one_step_strongly_convex(
    *,
    target: float,
    smoothness: float,
    convexity: float,
    start: float,
    alpha: float,
    clients: int,
    b: int,
) -> Bound:
    """Returns step, rounds and bits to E f(w) - f(w*) <= target, Song's Theorem E.1.

    The largest step, which is the best by the bound.

    >>> one_step_strongly_convex(
    ...     target=1e-6, smoothness=1.0, convexity=0.1, start=0.5, alpha=12.0,
    ...     clients=1, b=1).rounds
    1700

    Args:
      target: the error E f(w) - f(w*).
      smoothness: the smoothness L of f.
      convexity: the strong convexity mu of f.
      start: f(w0) - f(w*), or no less, as L/2 `|w0 - w*|^2`.
      alpha: the number that `alpha` returns for the operator.
      clients: the number of clients, all of which take part in every round.
      b: the number of numbers in a message.
    """
    positive(target=target, convexity=convexity, start=start)
    no_more("Song et al.'s Theorem E.1", smoothness, convexity=convexity)
    step = one_step_largest(smoothness=smoothness, alpha=alpha)
    kept = 1 - convexity * step
    rounds = 1
    if kept > 0 and target < start:
        rounds = math.ceil(math.log(target / start) / math.log1p(-convexity * step))
    kind = ("f is L-smooth and mu-strongly convex",)
    return _bound("E.1", step, rounds, clients * b, (*kind, *ONE_STEP))


def one_step_convex(
    *,
    target: float,
    smoothness: float,
    distance: float,
    alpha: float,
    clients: int,
    b: int,
) -> Bound:
    """Returns step, rounds and bits to E f(average) - f(w*) <= target, Theorem E.2.

    Args:
      target: the error E f(average) - f(w*).
      smoothness: the smoothness L of f.
      distance: the squared distance `|w0 - w*|^2` from the start to the optimum.
      alpha: the number that `alpha` returns for the operator.
      clients: the number of clients, all of which take part in every round.
      b: the number of numbers in a message.
    """
    positive(target=target, distance=distance)
    step = one_step_largest(smoothness=smoothness, alpha=alpha, convex=True)
    rounds = math.ceil(distance / (step * target)) - 1
    average = "the promise is for the average of all parameters on the way"
    kind = ("f is convex and L-smooth", *ONE_STEP, average)
    return _bound("E.2", step, rounds, clients * b, kind)


def one_step_nonconvex(
    *,
    target: float,
    smoothness: float,
    start: float,
    alpha: float,
    clients: int,
    b: int,
) -> Bound:
    """Returns step, rounds and bits to a mean `E |grad f|^2` <= target, Theorem E.3.

    Args:
      target: the mean of E `|grad f(w)|^2` over the parameters of all rounds.
      smoothness: the smoothness L of f.
      start: f(w0) - f(w*), or no less.
      alpha: the number that `alpha` returns for the operator.
      clients: the number of clients, all of which take part in every round.
      b: the number of numbers in a message.
    """
    positive(target=target, start=start)
    step = one_step_largest(smoothness=smoothness, alpha=alpha)
    rounds = math.ceil(2 * start / (step * target)) - 1
    mean = "the promise is for the mean of E |grad f|^2 over all rounds' parameters"
    kind = ("f is L-smooth and bounded below", *ONE_STEP, mean)
    return _bound("E.3", step, rounds, clients * b, kind)


def _bound(
    name: str, step: float, rounds: int, numbers: int, assumptions: tuple[str, ...]
) -> Bound:
    rounds = max(1, rounds)
    bits = FLOAT_BITS * numbers * rounds
    return Bound(f"Song et al., Theorem {name}", step, rounds, 1, bits, assumptions)
