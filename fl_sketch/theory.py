"""What the theorems promise: step sizes, rounds, errors and bits, before a run.

Every function takes the constants of the problem and returns what the paper's proof
gives for them, no more: a theorem whose assumptions do not hold for a model says
nothing about it, and most constants of a deep network are not known. Where a paper
states only an order, O(...), the constant is set to one here and the docstring says
so. Bits are counted for messages of 32-bit floats, up from all clients.

>>> plan = strongly_convex(
...     target=0.01, smoothness=1.0, convexity=0.1, distance=4.0, spread=0.0,
...     alpha=alpha("count_sketch", 1000, 100), clients=10, b=100)
>>> round(plan.step, 6), plan.rounds, plan.bits
(0.004032, 14859, 475488000)
"""

import math
from typing import NamedTuple

from fl_sketch import validate
from fl_sketch.wire import FLOAT_BITS

# a of Song's Table 1: alpha = a d / b.
EMBEDDING = {
    "gaussian": 3,
    "srht": 2,
    "ams": 2,
    "count_sketch": 3,
    "sparse_embedding": 2,
}


class Promise(NamedTuple):
    """What a theorem gives."""

    theorem: str
    step: float  # of the clients
    rounds: int
    local_steps: int
    bits: int  # up, of all clients and rounds
    assumptions: tuple[str, ...]


def alpha(operator: str, d: int, b: int) -> float:
    """Returns alpha with E|R^T R x|^2 <= (1 + alpha) |x|^2, as Song's Theorem 4.2.

    Table 1 for the operators of the paper; exactly d/b - 1 for uniform sampling,
    which is not in it, and 0 for the identity. The exact values stand in
    `tests/oracles/closed_forms.py` and are smaller.
    """
    if operator == "identity" or b >= d and operator == "uniform_sampling":
        return 0.0
    if operator == "uniform_sampling":
        return d / b - 1
    validate.one_of((*EMBEDDING, "uniform_sampling", "identity"), operator=operator)
    return EMBEDDING[operator] * d / b


SONG = (
    "every client's loss is convex and L-smooth (Assumption 3.1)",
    "clients take full gradient steps, all in every round, and the server rate is 1",
    "a fresh sketch every round, independent of all others (Theorem 4.2)",
)


def largest_step(*, smoothness: float, steps: int, alpha: float) -> float:
    """Returns 1 / (8 (1 + alpha) L K), the largest step of Theorems 5.1 and 5.3."""
    _positive(smoothness=smoothness, steps=steps)
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
) -> float:
    """Returns the bound on E f(w) - f(w*) after some rounds, Song's Theorem 5.1.

    L/2 |w0 - w*|^2 e^(-mu eta T) + 4 eta^2 L^2 K^3 sigma^2 / mu, for a step of at
    most `largest_step`. The formal version is Theorem F.9.

    Args:
      step: eta of the clients.
      rounds: T.
      steps: K, local.
      smoothness: L of every client's loss.
      convexity: mu > 0 of every client's loss.
      distance: |w0 - w*|^2.
      spread: sigma^2, the mean over clients of |grad f_c(w*)|^2; 0 if all have their
        minimum in one place.
    """
    _positive(convexity=convexity)
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
) -> float:
    """Returns the bound on E f(average) - f(w*), Song's Theorem 5.3.

    4 |w0 - w*|^2 / (eta K T) + 32 eta^2 L K^2 sigma^2, of the average of all clients'
    parameters over all steps. The arguments are those of `strongly_convex_error`.
    """
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
) -> Promise:
    """Returns step, rounds and bits to E f(w) - f(w*) <= target, Song's Corollary 5.2.

    The largest step for which the drift of Theorem 5.1 is at most half the target,
    and the rounds after which the rest is (the proof of Theorem F.10). One local
    step is best. For a target not too small the rounds grow like 1 + alpha ~ d/b and
    the bits, rounds times b, do not grow as b shrinks.
    """
    _positive(target=target, convexity=convexity, distance=distance)
    step = largest_step(smoothness=smoothness, steps=steps, alpha=alpha)
    if spread > 0:
        drift = math.sqrt(convexity * target / (2 * steps * spread))
        step = min(step, drift / (2 * smoothness * steps))
    logarithm = max(math.log(smoothness * distance / target), 0)
    rounds = max(1, math.ceil(logarithm / (convexity * step)))
    return Promise(
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
) -> Promise:
    """Returns step, rounds and bits to E f(average) - f(w*) <= target, Corollary 5.4.

    As `strongly_convex`, with both terms of Theorem 5.3 at most half the target (the
    proof of Theorem F.8).
    """
    _positive(target=target, distance=distance)
    step = largest_step(smoothness=smoothness, steps=steps, alpha=alpha)
    if spread > 0:
        step = min(step, math.sqrt(target / (smoothness * spread)) / (8 * steps))
    rounds = math.ceil(8 * distance / (step * steps * target))
    return Promise(
        "Song et al., Theorem 5.3 and Corollary 5.4",
        step,
        rounds,
        steps,
        FLOAT_BITS * clients * b * rounds,
        (*SONG, "the promise is for the average of all parameters on the way"),
    )


class Adaptive(NamedTuple):
    """The constants of SAFL's theorems."""

    smoothness: float  # L, the largest eigenvalue of every client's Hessian
    intrinsic: float  # I = sum |lambda| / max |lambda| of the Hessian
    gradient: float  # G >= |grad| of every client and of all together
    noise: float  # sigma: stochastic gradients are sigma-sub-Gaussian
    loss: float  # L(z_1), the loss at the start over its lower bound of 0
    rate: float  # kappa, of the server
    b1: float  # beta_1
    eps: float  # epsilon of AMSGrad
    delta: float = 1e-3  # how likely the sketches are to mislead
    delta_g: float = 1e-3  # and how likely the stochastic gradients are
    nu: float = 1.0  # the theorem fails with a probability of order exp(-nu^2)


SAFL = (
    "AMSGrad as printed at the server, and all clients in every round",
    "all gradients are at most G long (Assumptions 1 and 2)",
    "stochastic gradients are sigma-sub-Gaussian (Assumption 3)",
    "clients' Hessians have eigenvalues of at most L, the loss has the intrinsic "
    "dimension I (Assumption 4)",
)


def adaptive_error(
    constants: Adaptive,
    *,
    step: float,
    rounds: int,
    steps: int,
    clients: int,
    d: int,
    b: int,
) -> float:
    """Returns the bound on the mean of |grad L(x_t)|^2 over rounds, SAFL's Theorem 3.2.

    The printed inequality divided by kappa eta J_1 K T, for any constant step; it
    holds with probability 1 - O(delta) - O(exp(-nu^2)) - delta_g.

    Args:
      constants: of the problem.
      step: eta of the clients.
      rounds: T.
      steps: K.
      clients: C.
      d: parameters.
      b: sketch size.
    """
    c, k, eta, root = constants, steps, step, math.sqrt(rounds)

    def tail(d_power, rounds_power):
        grown = clients * k * d**d_power * rounds**rounds_power / c.delta
        return math.log(grown) ** 1.5 / math.sqrt(b)

    inverse_j1 = math.sqrt(1 + tail(2, 2)) * eta * k * c.gradient + c.eps
    square = c.gradient**2
    smooth = c.rate * eta**2 * c.smoothness * k**2 * square * rounds / c.eps
    luck = tail(1, 1) * square + c.noise * math.sqrt(math.log(2 * rounds / c.delta_g))
    martingale = c.nu * c.rate * eta * k * root * luck / c.eps
    curved = 8 * c.rate * c.intrinsic * c.smoothness * k**2 + 2 * c.gradient
    curved *= eta**2 * c.rate * rounds * (1 + tail(1, 2)) ** 2
    curved *= square / ((1 - c.b1) ** 2 * c.eps**2)
    total = c.loss + smooth + martingale + curved
    return total * inverse_j1 / (c.rate * eta * k * rounds)


def adaptive_long_run_error(
    constants: Adaptive, *, rounds: int, steps: int, clients: int, d: int, b: int
) -> float:
    """Returns the bound of SAFL's Corollary 1, with the step 1 / (K sqrt T).

    For T >= G^2 / eps^2; below that many rounds it is not promised.
    """
    c, root = constants, math.sqrt(rounds)
    j2 = math.log(clients * steps * d * rounds**2 / c.delta) ** 1.5 / math.sqrt(b)
    square = c.gradient**2
    curved = (4 * c.rate * c.intrinsic * c.smoothness + c.gradient) / (1 - c.b1) ** 2
    luck = j2 * square + c.noise * math.sqrt(math.log(2 * rounds / c.delta_g))
    terms = (
        4 * (1 + j2) ** 2 * curved * square / c.eps,
        2 * c.loss * c.eps / c.rate,
        2 * c.smoothness * square / c.eps,
        2 * c.nu * luck,
    )
    return sum(terms) / root


def adaptive(
    constants: Adaptive, *, target: float, steps: int, clients: int, d: int, b: int
) -> Promise:
    """Returns step, rounds and bits to a mean |grad|^2 <= target, SAFL's Corollary 1.

    The fewest rounds, found by bisection, from G^2 / eps^2 on.
    """
    _positive(target=target, rate=constants.rate, eps=constants.eps)

    def enough(rounds):
        found = adaptive_long_run_error(
            constants, rounds=rounds, steps=steps, clients=clients, d=d, b=b
        )
        return found <= target

    low = max(1, math.ceil((constants.gradient / constants.eps) ** 2)) - 1
    high = low + 1
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return Promise(
        "Chen et al., Theorem 3.2 and Corollary 1",
        1 / (steps * math.sqrt(high)),
        high,
        steps,
        FLOAT_BITS * clients * b * high,
        (*SAFL, "T >= G^2 / eps^2 rounds"),
    )


OBJECTIVES = ("nonconvex", "pl", "convex")
VARIANTS = ("privix", "heaprix")
FEDSKETCH = (
    "every client's loss is L-smooth and bounded below (Assumption 2)",
    "stochastic gradients are unbiased, of bounded variance (Assumption 4 or 5)",
    "orders only: the theorem's constants are set to one",
)


def fedsketch(
    objective: str,
    variant: str,
    *,
    target: float,
    smoothness: float,
    condition: float = 1.0,
    clients: int,
    d: int,
    cols: int,
    server_rate: float,
    delta: float = 1e-3,
    tracking: bool = False,
) -> Promise:
    """Returns what FedSKETCH's Theorem 2, or with tracking Theorem 3, promises.

    The theorems state orders, the constants are one here. With mu^2 = e / m for m
    columns, omega is mu^2 d for PRIVIX and mu^2 d - 1 for HEAPRIX. The message has
    m log(d R / delta) numbers. Theorem 3 prints mu^2 d in the nonconvex step of both
    variants; it follows from Theorem 9, which has omega + 1, and so does this.

    Args:
      objective: "nonconvex", "pl" (Polyak-Lojasiewicz, or strongly convex) or
        "convex".
      variant: "privix" or "heaprix".
      target: on the mean |grad|^2 if not convex, else on E f(w) - f(w*).
      smoothness: L.
      condition: kappa = L / mu of a PL loss.
      clients: k a round; of Theorem 3, all p of them.
      d: parameters.
      cols: m, of the count sketch.
      server_rate: gamma, at least the number of clients.
      delta: how likely the sketch is to fail.
      tracking: FedSKETCHGATE (Theorem 3), for clients that differ.
    """
    validate.one_of(OBJECTIVES, objective=objective)
    validate.one_of(VARIANTS, variant=variant)
    _positive(target=target, smoothness=smoothness)
    omega = max(math.e * d / cols - (variant == "heaprix"), 0)
    k, logarithm = clients, max(math.log(1 / target), 1)
    # Clients' errors of compression average out in Theorem 2 and not in Theorem 3.
    grown = omega + 1 if tracking else omega / k + 1
    each = 1 / (k * target) if tracking else (omega + 1) / (k * grown * target)
    rounds, steps = {
        "nonconvex": (
            (omega + 1) / target if tracking else 1 / target,
            each if tracking else (omega + 1) / (k * target),
        ),
        "pl": (grown * condition * logarithm, each),
        "convex": (smoothness * grown / target * logarithm, each**2 * k),
    }[objective]
    rounds, steps = math.ceil(rounds), max(1, math.ceil(steps))
    if objective == "nonconvex":
        step = math.sqrt(k / (rounds * steps * grown)) / (smoothness * server_rate)
    else:
        step = 1 / (2 * smoothness * grown * steps * server_rate)
    numbers = math.ceil(cols * math.log(d * rounds / delta))
    same = () if tracking else ("all clients have the same distribution",)
    kind = ("f satisfies the PL condition",) if objective == "pl" else ()
    return Promise(
        f"Haddadpour et al., Theorem {3 if tracking else 2}, {objective}, {variant}",
        step,
        rounds,
        steps,
        FLOAT_BITS * k * numbers * rounds,
        (*FEDSKETCH, *same, *kind, f"gamma >= {k}, here {server_rate:g}"),
    )


def _positive(**named: float) -> None:
    for name, value in named.items():
        if not 0 < value < math.inf:
            msg = f"Expected {name} > 0 and finite, got {name}={value}."
            raise ValueError(msg)
