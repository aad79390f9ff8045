"""Haddadpour et al.: FedSKETCH and FedSKETCHGATE, Theorems 2 and 3."""

import math

from fl_sketch.core import validate
from fl_sketch.theory.bound import Bound, Constants, Theorem

OBJECTIVES = ("nonconvex", "pl", "convex")
VARIANTS = ("privix", "heaprix")
ASSUMPTIONS = (
    "every client's loss is L-smooth and bounded below (Assumption 2)",
    "stochastic gradients are unbiased, of bounded variance (Assumption 4 or 5)",
    "orders only: the theorem's constants are set to one",
)


def fedsketch(
    constants: Constants,
    target: float,
    *,
    objective: str,
    variant: str,
    cols: int,
    tracking: bool = False,
) -> Bound:
    """Returns what FedSKETCH's Theorem 2, or with tracking Theorem 3, promises.

    The theorems state orders, the constants are one here. With mu^2 = e / m for m
    columns, omega is mu^2 d for PRIVIX and mu^2 d - 1 for HEAPRIX. The message has
    m log(d R / delta) numbers. Theorem 3 prints mu^2 d in the nonconvex step of both
    variants; it follows from Theorem 9, which has omega + 1, and so does this.

    Args:
      constants: the constants of the run; the theorem chooses its `b` and `steps`.
      target: the error: the mean `|grad|^2` if not convex, else E f(w) - f(w*).
      objective: the kind of loss: "nonconvex", "pl" (Polyak-Lojasiewicz, or strongly
        convex) or "convex".
      variant: the way to read sketches: "privix" or "heaprix".
      cols: the number m of columns of the count sketch.
      tracking: whether it is FedSKETCHGATE (Theorem 3), for clients that differ.
    """
    validate.one_of(OBJECTIVES, objective=objective)
    validate.one_of(VARIANTS, variant=variant)
    assumptions = [*ASSUMPTIONS]
    if not tracking:
        assumptions.append("all clients have the same distribution")
    if objective == "pl":
        assumptions.append("f satisfies the PL condition")
    theorem = Theorem(
        f"Haddadpour et al., Theorem {2 + tracking}, {objective}, {variant}",
        ("smoothness", "clients", "d", *["convexity"] * (objective == "pl")),
        (*assumptions, f"the server rate is {constants.server_rate:g}"),
    )
    c = theorem.require(constants, target)
    theorem.at_least(c.clients, server_rate=c.server_rate)
    theorem.at_most(c.smoothness, convexity=c.convexity)
    theorem.at_most(c.d, cols=cols)
    omega = max(math.e * c.d / cols - (variant == "heaprix"), 0)
    # Clients' errors of compression average out in Theorem 2 and not in Theorem 3.
    grown = omega + 1 if tracking else omega / c.clients + 1
    logarithm = max(math.log(1 / target), 1)
    local = 1 / (c.clients * target)
    if not tracking:
        local = (omega + 1) / (c.clients * grown * target)
    if objective == "pl":
        rounds = grown * (c.smoothness / c.convexity) * logarithm
    elif objective == "convex":
        rounds = c.smoothness * grown / target * logarithm
        local = local**2 * c.clients
    else:
        rounds = (omega + 1 if tracking else 1) / target
        local = (1 if tracking else omega + 1) / (c.clients * target)
    rounds, local = math.ceil(rounds), max(1, math.ceil(local))
    if objective == "nonconvex":
        step = math.sqrt(c.clients / (rounds * local * grown))
        step /= c.smoothness * c.server_rate
    else:
        step = 1 / (2 * c.smoothness * grown * local * c.server_rate)
    numbers = math.ceil(cols * math.log(c.d * rounds / c.delta))
    return theorem.bound(c, target, step=step, rounds=rounds, steps=local, b=numbers)
