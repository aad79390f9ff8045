"""Das et al.: DP-FedAvg with clipping on convex losses, Theorem 2."""

import math

from fl_sketch.theory.bound import Bound, Constants, Theorem, Unreachable

THEOREM_2 = Theorem(
    "Das et al., Theorem 2",
    ("rho", "smoothness", "distance", "threshold", "steps", "gap"),
    (
        "every client's loss is convex and L-smooth",
        "C / E >= 4 sqrt(L Delta)",
        "the server steps as far as the clients, and returns a random iterate",
        "the error is the mean over clients of 5/4 to 2 times f_i(w) - f_i(w*) where "
        "nothing is clipped, and of 3 C |u_i| / (8 L E^2) where it is",
    ),
)


def clipped_error(constants: Constants, *, alpha: float, gamma: float) -> float:
    """Returns the right side of Theorem 2, A + B.

    Its left side is a mean over clients and rounds. A client i that is not clipped
    counts (2 - rho E / alpha - (rho E / alpha)^2) (f_i(w) - f_i(w*)), and one that is
    counts `3 C |u_i| / (8 L E^2)`. In B every client counts as not clipped, which is
    its most. In the paper rho is sqrt(q d log(1 / delta)) / (n epsilon).

    Args:
      constants: the constants of the run; E is their `steps`.
      alpha: the number in the step rho / (2 alpha L), at least 1 and 2 rho E.
      gamma: the number in the choice of 2 alpha gamma / (C rho^2) rounds.
    """
    c = THEOREM_2.require(constants)
    if not 0 < gamma < math.inf:
        msg = f"Expected gamma > 0 and finite, got gamma={gamma}."
        raise ValueError(msg)
    THEOREM_2.at_least(max(1, 2 * c.rho * c.steps), alpha=alpha)
    least = 4 * c.steps * math.sqrt(c.smoothness * c.gap)
    THEOREM_2.at_least(least, threshold=c.threshold)
    start = c.smoothness * c.distance / gamma + gamma / c.smoothness
    start *= c.threshold / c.steps
    return c.rho * (start + 3 * c.steps * c.gap / (2 * alpha))


def clipped(constants: Constants, target: float) -> Bound:
    """Returns step, rounds and bits to an error <= target, Das et al.'s Theorem 2.

    `gamma = L |w0 - w*|` makes A least; alpha is the smallest with A + B <= target.
    More rounds cannot lower `A = 2 C/E |w0 - w*| rho`: noise grows with them.
    """
    c = THEOREM_2.require(constants, target)
    gamma = c.smoothness * math.sqrt(c.distance)
    start = c.rho * c.threshold / c.steps * 2 * math.sqrt(c.distance)
    if start >= target:
        msg = (
            f"Expected target > {start:.4g}, below which no number of rounds gets with "
            f"this noise ({THEOREM_2.name}), got target={target:g}."
        )
        raise Unreachable(msg)
    alpha = 3 * c.steps * c.gap * c.rho / (2 * (target - start))
    alpha = max(1, 2 * c.rho * c.steps, alpha)
    error = clipped_error(c, alpha=alpha, gamma=gamma)
    rounds = math.ceil(2 * alpha * gamma / (c.threshold * c.rho**2))
    step = c.rho / (2 * alpha * c.smoothness)
    return THEOREM_2.bound(c, error, step=step, rounds=rounds, b=c.d)
