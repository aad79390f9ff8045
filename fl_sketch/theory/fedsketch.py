"""Haddadpour et al.: FedSKETCH and FedSKETCHGATE, Theorems 2 and 3."""

import math

from fl_sketch.core import validate
from fl_sketch.core.wire import FLOAT_BITS
from fl_sketch.theory.bound import Bound, no_less, no_more, positive

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
) -> Bound:
    """Returns what FedSKETCH's Theorem 2, or with tracking Theorem 3, promises.

    The theorems state orders, the constants are one here. With mu^2 = e / m for m
    columns, omega is mu^2 d for PRIVIX and mu^2 d - 1 for HEAPRIX. The message has
    m log(d R / delta) numbers. Theorem 3 prints mu^2 d in the nonconvex step of both
    variants; it follows from Theorem 9, which has omega + 1, and so does this.

    Args:
      objective: the kind of loss: "nonconvex", "pl" (Polyak-Lojasiewicz, or strongly
        convex) or "convex".
      variant: the way to read sketches: "privix" or "heaprix".
      target: the error: the mean `|grad|^2` if not convex, else E f(w) - f(w*).
      smoothness: the smoothness L of every client's loss.
      condition: the condition number kappa = L / mu of a PL loss.
      clients: the number k of clients in a round; of Theorem 3, all p of them.
      d: the number of parameters.
      cols: the number m of columns of the count sketch.
      server_rate: the server's rate gamma, at least the number of clients.
      delta: the chance that the sketch fails.
      tracking: whether it is FedSKETCHGATE (Theorem 3), for clients that differ.

    Raises:
      Unreachable: for a server's rate below the number of clients, more columns than
        parameters, or a condition number below 1.
    """
    validate.one_of(OBJECTIVES, objective=objective)
    validate.one_of(VARIANTS, variant=variant)
    positive(target=target, smoothness=smoothness)
    number = 3 if tracking else 2
    theorem = f"Haddadpour et al.'s Theorem {number}"
    no_less(theorem, clients, server_rate=server_rate)
    no_less(theorem, 1, condition=condition)
    no_more(theorem, d, cols=cols)
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
    return Bound(
        f"Haddadpour et al., Theorem {number}, {objective}, {variant}",
        step,
        rounds,
        steps,
        FLOAT_BITS * k * numbers * rounds,
        (*FEDSKETCH, *same, *kind, f"the server rate is {server_rate:g}"),
    )
