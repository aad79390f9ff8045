"""Song et al.: iterative sketching with K local steps, Theorems 5.1 to 5.4 and G.2.

For one local step `one_step` has the paper's appendix E, whose steps are up to 8 times
longer and whose bounds have no drift.
"""

import math

from fl_sketch.core import validate
from fl_sketch.core.wire import FLOAT_BITS
from fl_sketch.theory.bound import Bound, no_more, positive

# a of Song's Table 1: alpha = a d / b.
EMBEDDING = {
    "gaussian": 3,
    "srht": 2,
    "ams": 2,
    "count_sketch": 3,
    "sparse_embedding": 2,
}


def alpha(operator: str, d: int, b: int) -> float:
    """Returns alpha with `E|R^T R x|^2 <= (1 + alpha) |x|^2`, as Song's Theorem 4.2.

    Table 1 for the operators of the paper; exactly d/b - 1 for uniform sampling,
    which is not in it, and 0 for the identity. The exact values stand in
    `tests/oracles/closed_forms.py` and are smaller.

    Args:
      operator: a name as configs have it: one of `EMBEDDING`, "uniform_sampling" or
        "identity".
      d: the number of parameters.
      b: the number of numbers in a message.
    """
    if operator == "identity" or b >= d and operator == "uniform_sampling":
        return 0.0
    if operator == "uniform_sampling":
        return d / b - 1
    validate.one_of((*EMBEDDING, "uniform_sampling", "identity"), operator=operator)
    return EMBEDDING[operator] * d / b


FRESH = "a fresh sketch every round, independent of all others (Theorem 4.2)"
SONG = (
    "every client's loss is convex and L-smooth (Assumption 3.1)",
    "clients take full gradient steps, all in every round, and the server rate is 1",
    FRESH,
)
NONCONVEX = (
    "every client's loss is L-smooth, and its gradients are at most G long, anywhere",
    "clients take full gradient steps, all in every round",
    FRESH,
    "the promise is for the mean of E |grad f|^2 over the parameters of all rounds",
)


def largest_step(*, smoothness: float, steps: int, alpha: float) -> float:
    """Returns 1 / (8 (1 + alpha) L K), the largest step of Theorems 5.1 and 5.3.

    Args:
      smoothness: the smoothness L of every client's loss.
      steps: the number K of local steps.
      alpha: the number that `alpha` returns for the operator.
    """
    positive(smoothness=smoothness, steps=steps)
    return 1 / (8 * (1 + alpha) * smoothness * steps)


def strongly_convex_error(
    *,
    step: float,
    rounds: int,
    steps: int,
    smoothness: float,
    convexity: float,
    distance: float,
    spread: float,
    alpha: float,
) -> float:
    """Returns the bound on E f(w) - f(w*) after some rounds, Song's Theorem 5.1.

    `L/2 |w0 - w*|^2 e^(-mu eta T) + 4 eta^2 L^2 K^3 sigma^2 / mu`. The formal version
    is Theorem F.9.

    Args:
      step: the step size eta of the clients.
      rounds: the number T of rounds.
      steps: the number K of local steps.
      smoothness: the smoothness L of every client's loss.
      convexity: the strong convexity mu > 0 of every client's loss.
      distance: the squared distance `|w0 - w*|^2` from the start to the optimum.
      spread: the mean over clients of `|grad f_c(w*)|^2`, sigma^2; 0 if all have their
        minimum in one place.
      alpha: the number that `alpha` returns for the operator.

    Raises:
      Unreachable: for a step above `largest_step`, or mu above L.
    """
    positive(convexity=convexity, step=step)
    validate.in_range(0, math.inf, rounds=rounds)
    no_more("Song et al.'s Theorem 5.1", smoothness, convexity=convexity)
    longest = largest_step(smoothness=smoothness, steps=steps, alpha=alpha)
    no_more("Song et al.'s Theorem 5.1", longest, step=step)
    shrunk = distance * math.exp(-convexity * step * rounds)
    drift = 4 * step**2 * smoothness**2 * steps**3 * spread / convexity
    return smoothness / 2 * shrunk + drift


def convex_error(
    *,
    step: float,
    rounds: int,
    steps: int,
    smoothness: float,
    distance: float,
    spread: float,
    alpha: float,
) -> float:
    """Returns the bound on E f(average) - f(w*), Song's Theorem 5.3.

    `4 |w0 - w*|^2 / (eta K T) + 32 eta^2 L K^2 sigma^2`, of the average of all clients'
    parameters before each of their K T steps, which `theorems.known_problems` can make
    (`averages_of_rounds`). The formal version is Theorem F.7.

    Args:
      step: the step size eta of the clients.
      rounds: the number T of rounds.
      steps: the number K of local steps.
      smoothness: the smoothness L of every client's loss.
      distance: the squared distance `|w0 - w*|^2` from the start to the optimum.
      spread: the mean over clients of `|grad f_c(w*)|^2`, sigma^2.
      alpha: the number that `alpha` returns for the operator.

    Raises:
      Unreachable: for a step above `largest_step`.
    """
    positive(step=step, rounds=rounds)
    longest = largest_step(smoothness=smoothness, steps=steps, alpha=alpha)
    no_more("Song et al.'s Theorem 5.3", longest, step=step)
    first = 4 * distance / (step * steps * rounds)
    return first + 32 * step**2 * smoothness * steps**2 * spread


def strongly_convex(
    *,
    target: float,
    smoothness: float,
    convexity: float,
    distance: float,
    spread: float,
    alpha: float,
    clients: int,
    b: int,
    steps: int = 1,
) -> Bound:
    """Returns step, rounds and bits to E f(w) - f(w*) <= target, Song's Corollary 5.2.

    The largest step for which the drift of Theorem 5.1 is at most half the target, and
    the rounds after which the rest is (the proof of Theorem F.10). One local step is
    best, and `one_step_strongly_convex` better still. For a target not too small the
    rounds grow like 1 + alpha ~ d/b and the bits, rounds times b, do not grow as b
    shrinks.

    Args:
      target: the error E f(w) - f(w*).
      smoothness: the smoothness L of every client's loss.
      convexity: the strong convexity mu > 0 of every client's loss.
      distance: the squared distance `|w0 - w*|^2` from the start to the optimum.
      spread: the mean over clients of `|grad f_c(w*)|^2`, sigma^2.
      alpha: the number that `alpha` returns for the operator.
      clients: the number of clients, all of which take part in every round.
      b: the number of numbers in a message.
      steps: the number K of local steps.
    """
    positive(target=target, convexity=convexity, distance=distance)
    no_more("Song et al.'s Theorem 5.1", smoothness, convexity=convexity)
    step = largest_step(smoothness=smoothness, steps=steps, alpha=alpha)
    if spread > 0:
        drift = math.sqrt(convexity * target / (2 * steps * spread))
        step = min(step, drift / (2 * smoothness * steps))
    logarithm = max(math.log(smoothness * distance / target), 0)
    rounds = max(1, math.ceil(logarithm / (convexity * step)))
    return Bound(
        "Song et al., Theorem 5.1 and Corollary 5.2",
        step,
        rounds,
        steps,
        FLOAT_BITS * clients * b * rounds,
        (*SONG, "every client's loss is mu-strongly convex"),
    )


def convex(
    *,
    target: float,
    smoothness: float,
    distance: float,
    spread: float,
    alpha: float,
    clients: int,
    b: int,
    steps: int = 1,
) -> Bound:
    """Returns step, rounds and bits to E f(average) - f(w*) <= target, Corollary 5.4.

    As `strongly_convex`, with both terms of Theorem 5.3 at most half the target (the
    proof of Theorem F.8).

    Args:
      target: the error E f(average) - f(w*).
      smoothness: the smoothness L of every client's loss.
      distance: the squared distance `|w0 - w*|^2` from the start to the optimum.
      spread: the mean over clients of `|grad f_c(w*)|^2`, sigma^2.
      alpha: the number that `alpha` returns for the operator.
      clients: the number of clients, all of which take part in every round.
      b: the number of numbers in a message.
      steps: the number K of local steps.
    """
    positive(target=target, distance=distance)
    step = largest_step(smoothness=smoothness, steps=steps, alpha=alpha)
    if spread > 0:
        step = min(step, math.sqrt(target / (smoothness * spread)) / (8 * steps))
    rounds = math.ceil(8 * distance / (step * steps * target))
    return Bound(
        "Song et al., Theorem 5.3 and Corollary 5.4",
        step,
        rounds,
        steps,
        FLOAT_BITS * clients * b * rounds,
        (*SONG, "the promise is for the average of all parameters on the way"),
    )


def nonconvex_error(
    *,
    step: float,
    rounds: int,
    steps: int,
    smoothness: float,
    gradient: float,
    start: float,
    alpha: float,
    server_rate: float = 1.0,
) -> float:
    """Returns the bound on the mean `E |grad f(w)|^2`, Song's Theorem G.2, corrected.

    With gamma for the server's rate it is
    `start / ((T + 1) gamma eta K) + L K G^2 eta (1 + gamma (1 + alpha) / 2)`.

    The paper prints gamma where gamma eta K stands in the first term, and eta K times
    the second: in the bound on E[A] of Lemma G.1 the K gradients of eta each are drawn
    together to one, so that the descent is `gamma |grad f|^2` in place of
    `gamma eta K |grad f|^2`. As printed it is false: at the start, T = 0, a quadratic
    has `|grad f|^2 = 2 L (f(w0) - f(w*))`.

    Args:
      step: the step size eta of the clients.
      rounds: the number T of rounds; the mean is over the T + 1 parameters w^0 to w^T.
      steps: the number K of local steps.
      smoothness: the smoothness L of every client's loss.
      gradient: the length G that no gradient of a client exceeds.
      start: f(w0) - f(w*), or no less.
      alpha: the number that `alpha` returns for the operator.
      server_rate: the server's rate gamma, eta_global.

    Raises:
      Unreachable: for a step above 1 / (2 L K), which Lemma G.1 asks for.
    """
    positive(step=step, smoothness=smoothness, server_rate=server_rate)
    validate.in_range(0, math.inf, rounds=rounds)
    longest = 1 / (2 * smoothness * steps)
    no_more("Song et al.'s Theorem G.2", longest, step=step)
    first = start / ((rounds + 1) * server_rate * step * steps)
    noise = 1 + server_rate * (1 + alpha) / 2
    return first + smoothness * steps * gradient**2 * step * noise


def nonconvex(
    *,
    target: float,
    smoothness: float,
    gradient: float,
    start: float,
    alpha: float,
    clients: int,
    b: int,
    steps: int = 1,
    server_rate: float = 1.0,
) -> Bound:
    """Returns step, rounds and bits to a mean `E |grad f|^2` <= target, Theorem G.2.

    Both terms of `nonconvex_error` are at most half the target.

    Args:
      target: the mean of E `|grad f(w)|^2` over the parameters of all rounds.
      smoothness: the smoothness L of every client's loss.
      gradient: the length G that no gradient of a client exceeds.
      start: f(w0) - f(w*), or no less.
      alpha: the number that `alpha` returns for the operator.
      clients: the number of clients, all of which take part in every round.
      b: the number of numbers in a message.
      steps: the number K of local steps.
      server_rate: the server's rate gamma, eta_global.
    """
    positive(target=target, smoothness=smoothness, gradient=gradient, start=start)
    positive(server_rate=server_rate)
    noise = 1 + server_rate * (1 + alpha) / 2
    calm = target / (2 * smoothness * steps * gradient**2 * noise)
    step = min(1 / (2 * smoothness * steps), calm)
    terms = math.ceil(2 * start / (target * server_rate * step * steps))
    rounds = max(1, terms - 1)
    return Bound(
        "Song et al., Theorem G.2, with the factor K eta that its print loses",
        step,
        rounds,
        steps,
        FLOAT_BITS * clients * b * rounds,
        (*NONCONVEX, f"the server rate is {server_rate:g}"),
    )
