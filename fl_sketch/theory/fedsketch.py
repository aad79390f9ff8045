"""Haddadpour et al.: FedSKETCH, Theorems 5 to 7, and FedSKETCHGATE, Theorem 3.

Theorem 2 states the orders of Theorems 5 to 7, whose constants are explicit. They hold
for any sketch that is read without bias. Its omega, with
`E|Q(x) - x|^2 <= omega |x|^2`, is `alpha` of the constants. Two steps of their proofs
are corrected here (results/theory/details.md):

- Clients of a round share one sketch, as the server reads the mean of messages. The
  errors do not average out, so that omega / k + 1 becomes omega + 1.
- Later gradients of a client depend on the noise of earlier ones. The noise of an
  update is up to `1 + 4/3 x e^x` times as large, for x = tau L eta.

In Theorem 2 the rounds for losses that are not convex are O(1 / target), with a step
that breaks condition (16): its equation (25) takes an upper bound for a lower one. Here
they are O((omega + 1) (1 / target + sigma^2 / (k tau target^2))), by Theorem 5. That is
O((omega + 1) / target) if local steps grow as 1 / (k target), as the paper has them.

Corollary 1 calls HEAPRIX unbiased. It is so if the rest has hashes of its own
(`values="fresh"` of `channels.heaprix`), which is the HEAPRIX of these theorems. With
one set of hashes, the default there, it is biased.
"""

import math
from dataclasses import replace

from fl_sketch.core import validate
from fl_sketch.theory.assumptions import (
    BARE,
    BOUNDED_BELOW,
    CONVEX,
    EVERYONE,
    PLAIN,
    SMOOTH,
    Assumption,
    server_rate,
    step_is,
    step_most,
)
from fl_sketch.theory.bound import Bound, Constants, Theorem
from fl_sketch.theory.song import MEAN, grown

VARIANTS = ("privix", "heaprix")
NEEDS = ("smoothness", "start", "clients", "steps", "noise", "server_rate")
VARIANCE = "stochastic gradients are unbiased, and off by sigma^2 at most in squared "
HOMOGENEOUS = (
    Assumption("homogeneous", "all clients have the same loss (Assumption 2)"),
    SMOOTH._replace(text="the loss is L-smooth (Assumption 2)"),
    BOUNDED_BELOW._replace(text="the loss is bounded below (Assumption 2)"),
    Assumption("variance", f"{VARIANCE}length (Assumption 4)"),
    PLAIN,
    BARE,
)
SHARED = (
    Assumption(
        "shared_sketch",
        "clients of a round share one fresh sketch, with E|Q(x) - x|^2 <= omega |x|^2",
    ),
)
FRESH = (
    Assumption(
        "fresh_values",
        'HEAPRIX sketches the rest with fresh hashes (values="fresh"); with those of '
        "its first message it is biased",
    ),
)
ORDERS = (
    SMOOTH._replace(text="every client's loss is L-smooth (Assumption 2)"),
    BOUNDED_BELOW._replace(text="the losses are bounded below (Assumption 2)"),
    Assumption(
        "variance",
        "stochastic gradients are unbiased, of bounded variance (Assumption 5)",
    ),
    PLAIN,
    BARE,
    *SHARED,
)
CONDITION_16 = ": tau^2 L^2 eta^2 + (omega + 1) eta gamma L tau <= 1 (condition 16)"
ORDER = "; orders only, whose constants are set to one"


def omega(variant: str, *, d: int, cols: int) -> float:
    """Returns omega of a count sketch of `cols` columns, at least 0.

    With mu^2 = e / cols it is mu^2 d for "privix" (Property 1) and mu^2 d - 1 for
    "heaprix" (Corollary 1), whose rest has fresh hashes.
    """
    validate.one_of(VARIANTS, variant=variant)
    validate.at_least_one(d=d, cols=cols)
    return max(math.e * d / cols - (variant == "heaprix"), 0)


def fedsketch_nonconvex(constants: Constants, target: float | None = None) -> Bound:
    """Returns the bound on the mean `E |grad f(w)|^2` of Theorem 5.

    `2 (f(w0) - f*) / (eta gamma tau R) + L eta gamma (omega + 1) sigma^2 / k
    + L^2 eta^2 tau sigma^2` (17), with a correction of the second term (see the
    module), for the mean over w^0 to w^(R - 1). Steps have
    `tau^2 L^2 eta^2 + (omega + 1) eta gamma L tau <= 1` (16). For a target, the step is
    one with which noise, the last two terms, is at most half of it.
    """
    theorem = Theorem(
        "Haddadpour et al., Theorem 5, nonconvex",
        NEEDS,
        (*HOMOGENEOUS, *SHARED, server_rate(constants.server_rate)),
        MEAN,
    )
    return _nonconvex(theorem, constants, target)


def fedavg_nonconvex(constants: Constants, target: float | None = None) -> Bound:
    """Returns the bound on the mean `E |grad f(w)|^2` of Corollary 5: FedAvg.

    It is Theorem 5 without a sketch (omega = 0) and with a server rate of 1.
    """
    theorem = Theorem(
        "Haddadpour et al., Corollary 5",
        NEEDS,
        (*HOMOGENEOUS, EVERYONE, server_rate(1.0)),
        MEAN,
    )
    plain = replace(constants, alpha=0.0, server_rate=1.0, b=constants.d)
    return _nonconvex(theorem, plain, target)


def _nonconvex(theorem: Theorem, constants: Constants, target: float | None) -> Bound:
    c = theorem.require(constants, target)
    if target is not None:
        c = replace(c, step=_calm(c, target / 2))
        left = target - _noise(c, c.step)
        c = replace(c, rounds=math.ceil(2 * c.start / (_moved(c) * left)))
    theorem.require_step(c, _longest(c))
    theorem.at_least(1, rounds=c.rounds)
    error = 2 * c.start / (_moved(c) * c.rounds) + _noise(c, c.step)
    return theorem.bound(c, error, step_most(_longest(c), CONDITION_16))


def fedsketch_pl(constants: Constants, target: float | None = None) -> Bound:
    """Returns the bound on `E f(w) - f*` of Theorem 6, for the PL condition.

    `(1 - eta gamma mu tau)^R (f(w0) - f*)` and 1 / (2 mu) times the noise of Theorem 5,
    for steps with condition (16). For a target, noise is at most half of it. With an
    `alpha` of 0 it is about FedAvg.
    """
    theorem = Theorem(
        "Haddadpour et al., Theorem 6, PL",
        (*NEEDS, "convexity"),
        (
            *HOMOGENEOUS,
            _pl(constants, "f satisfies the PL condition, or is mu-strongly convex"),
            *SHARED * (constants.alpha != 0),
            server_rate(constants.server_rate),
        ),
    )
    c = theorem.require(constants, target)
    theorem.at_most(c.smoothness, convexity=c.convexity)
    if target is not None:
        c = replace(c, step=_calm(c, c.convexity * target))
        noise = _noise(c, c.step) / (2 * c.convexity)
        c = replace(c, rounds=_fewest(c, target - noise))
    theorem.require_step(c, _longest(c))
    noise = _noise(c, c.step) / (2 * c.convexity)
    left = max(0.0, 1 - c.convexity * _moved(c))
    error = left**c.rounds * c.start + noise
    return theorem.bound(c, error, step_most(_longest(c), CONDITION_16))


def fedsketch_convex(constants: Constants, target: float | None = None) -> Bound:
    """Returns the bound on `E f(w) - f*` of Theorem 7, for convex losses.

    Clients minimise `f(w) + phi/2 |w - w0|^2` with phi = 1 / sqrt(k tau), which is the
    bound's `penalty`, and the step is 1 / (2 (L + phi) gamma tau (omega + 1)). The
    bound is that of Theorem 6 for this loss, and phi/2 `|w0 - w*|^2`; the paper has
    w0 = 0. For a target it chooses the local steps as well: all terms but the first
    fall as 1 / sqrt(tau). As printed, the smoothness lacks phi, and the exponent has m
    for k.
    """
    theorem = Theorem(
        "Haddadpour et al., Theorem 7, convex",
        (*NEEDS, "distance"),
        (
            *HOMOGENEOUS,
            CONVEX._replace(text="f is convex"),
            Assumption("penalty", "clients minimise f(w) + phi/2 |w - w0|^2"),
            *SHARED,
            server_rate(constants.server_rate),
        ),
    )
    c = theorem.require(constants, target)
    if target is not None:
        c = replace(c, steps=max(1, math.ceil((2 * _tail(c) / target) ** 2)))
    penalty = 1 / math.sqrt(c.clients * c.steps)
    smooth = c.smoothness + penalty
    step = 1 / (2 * smooth * c.server_rate * c.steps * grown(c))
    penalised = replace(c, smoothness=smooth, convexity=penalty, step=step)
    if target is not None:
        tail = fedsketch_pl(replace(penalised, rounds=0)).error - c.start
        tail += penalty / 2 * c.distance
        penalised = replace(penalised, rounds=_fewest(penalised, target - tail))
    theorem.at_least(1, rounds=penalised.rounds)
    error = fedsketch_pl(penalised).error + penalty / 2 * c.distance
    run = {"step": step, "penalty": penalty, "rounds": penalised.rounds}
    assumed = step_is(step, "1 / (2 (L + phi) gamma tau (omega + 1))")
    return theorem.bound(c, error, assumed, **run)


def _tail(c: Constants) -> float:
    """Returns sqrt(tau) times what Theorem 7 adds to its first term."""
    pull = c.server_rate * grown(c)
    noise = _crossed(1 / (2 * pull)) / (4 * c.clients) + 1 / (8 * pull**2)
    pulled_back = c.distance / (2 * math.sqrt(c.clients))
    return c.noise**2 * math.sqrt(c.clients) * noise + pulled_back


def _moved(c: Constants) -> float:
    """Returns by how much a gradient moves the model in a round: eta gamma tau."""
    return c.step * c.server_rate * c.steps


def _fewest(c: Constants, most: float) -> int:
    """Returns after how many rounds the first term of Theorem 6 is at most `most`."""
    part = c.convexity * _moved(c)
    if part >= 1:
        return 1
    shrunk = math.log1p(-part)
    return max(1, math.ceil(math.log(most / c.start) / shrunk))


def _pl(constants: Constants, text: str) -> Assumption:
    mu = constants.convexity
    return Assumption("pl", f"{text}, mu = {mu:g} (Assumption 3)", mu)


def _rows(c: Constants) -> Assumption:
    """Returns the assumption on the rows of a count sketch, log(d R / delta)."""
    rows = math.ceil(math.log(c.d * c.rounds / c.delta))
    return Assumption(
        "rows", f"the sketch has log(d R / delta) = {rows} rows or more", rows
    )


def _longest(c: Constants) -> float:
    """Returns the longest step of condition (16), by equation (23)."""
    pull = c.server_rate * grown(c)
    return 2 / (pull + math.hypot(pull, 2)) / (c.smoothness * c.steps)


def _noise(c: Constants, step: float) -> float:
    """Returns the last two terms of (17), the second corrected."""
    crossed = _crossed(step * c.smoothness * c.steps) if c.steps > 1 else 1.0
    of_update = c.smoothness * step * c.server_rate * grown(c) * crossed / c.clients
    of_drift = c.smoothness**2 * step**2 * c.steps
    return (of_update + of_drift) * c.noise**2


def _crossed(x: float) -> float:
    """Returns by how much noise grows since later gradients depend on it."""
    return 1 + 4 / 3 * x * math.exp(x)


def _calm(c: Constants, most: float) -> float:
    """Returns a step of condition (16) whose noise is at most `most`.

    Noise grows faster than the step, so a part of the longest has a smaller part.
    """
    longest = _longest(c)
    noise = _noise(c, longest)
    return longest * (min(1, most / noise) if noise else 1)


QUANTITIES = {"nonconvex": MEAN, "pl": "E f(w) - f*", "convex": "E f(w) - f*"}
PROMISES = {
    "nonconvex": fedsketch_nonconvex,
    "pl": fedsketch_pl,
    "convex": fedsketch_convex,
}


def fedsketch(
    constants: Constants,
    target: float | None = None,
    *,
    objective: str,
    variant: str,
    cols: int,
) -> Bound:
    """Returns the bound of Theorem 5, 6 or 7: FedSKETCH's Theorem 2 with constants.

    A sketch has cols log(d R / delta) numbers, in as many rows as the paper asks for.
    It is the message of "privix". Those of "heaprix" are two sketches and the values of
    cols heavy coordinates.

    Args:
      constants: the constants of the run; `alpha` is `omega`, and `b` is chosen.
      target: the error: the mean `|grad|^2` if not convex, else E f(w) - f*.
      objective: the kind of loss: "nonconvex", "pl" (Polyak-Lojasiewicz, or strongly
        convex) or "convex".
      variant: the way to read sketches: "privix" or "heaprix".
      cols: the number of columns of the count sketch.
    """
    validate.one_of((*PROMISES,), objective=objective)
    theorem = Theorem("Haddadpour et al., Theorem 2", ("d",))
    c = theorem.require(constants)
    theorem.at_most(c.d, cols=cols)
    c = replace(c, alpha=omega(variant, d=c.d, cols=cols))
    bound = PROMISES[objective](c, target)
    return bound._replace(
        theorem=f"{bound.theorem}, {variant}",
        constants=replace(bound.constants, b=_numbers(bound.constants, variant, cols)),
        assumptions=(
            *bound.assumptions,
            _rows(bound.constants),
            *FRESH * (variant == "heaprix"),
        ),
    )


def _numbers(c: Constants, variant: str, cols: int) -> int:
    """Returns the numbers of messages: cols in each of log(d R / delta) rows."""
    numbers = math.ceil(cols * math.log(c.d * c.rounds / c.delta))
    return 2 * numbers + cols if variant == "heaprix" else numbers


def fedsketchgate(
    constants: Constants,
    target: float,
    *,
    objective: str,
    variant: str,
    cols: int,
) -> Bound:
    """Returns the bound of FedSKETCHGATE's Theorem 3, for clients that differ.

    It states orders, and the constants are one here. It prints mu^2 d in the nonconvex
    step of both variants, and gamma >= p, the number of clients. It follows from
    Theorem 9, which has omega + 1, and gamma >= sqrt(p tau) for the other objectives.
    Here both limits hold. The arguments are those of `fedsketch`; the theorem chooses
    `steps` as well.
    """
    validate.one_of((*PROMISES,), objective=objective)
    theorem = Theorem(
        f"Haddadpour et al., Theorem 3, {objective}, {variant}",
        ("smoothness", "clients", "d", *["convexity"] * (objective == "pl")),
        (
            *ORDERS,
            *[_pl(constants, "f satisfies the PL condition")] * (objective == "pl"),
            *FRESH * (variant == "heaprix"),
            server_rate(constants.server_rate),
        ),
        QUANTITIES[objective] + ORDER,
    )
    c = theorem.require(constants, target)
    theorem.at_least(c.clients, server_rate=c.server_rate)
    theorem.at_most(c.smoothness, convexity=c.convexity)
    theorem.at_most(c.d, cols=cols)
    spread = omega(variant, d=c.d, cols=cols) + 1
    rounds, local = _orders(c, objective, spread, target)
    c = replace(c, rounds=math.ceil(rounds), steps=max(1, math.ceil(local)))
    if objective != "nonconvex":
        theorem.at_least(math.sqrt(c.clients * c.steps), server_rate=c.server_rate)
    step = 1 / (2 * c.smoothness * spread * c.steps * c.server_rate)
    if objective == "nonconvex":
        step = math.sqrt(c.clients / (c.rounds * c.steps * spread))
        step /= c.smoothness * c.server_rate
    local = Assumption("steps", f"the number of local steps is {c.steps}", c.steps)
    assumed = step_is(step, "that of the theorem"), local, _rows(c)
    run = {"step": step, "b": _numbers(c, variant, cols)}
    return theorem.bound(c, target, *assumed, **run)


def _orders(
    c: Constants, objective: str, spread: float, target: float
) -> tuple[float, float]:
    """Returns the rounds and the local steps of Theorem 3; `spread` is omega + 1."""
    logarithm, local = max(math.log(1 / target), 1), 1 / (c.clients * target)
    if objective == "pl":
        return spread * (c.smoothness / c.convexity) * logarithm, local
    if objective == "convex":
        return c.smoothness * spread / target * logarithm, local / target
    return spread / target, local
