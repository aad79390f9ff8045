"""Das et al.: DP-FedAvg with clipping on convex losses, Theorem 2."""

import math

from fl_sketch.core.wire import FLOAT_BITS
from fl_sketch.theory.bound import Bound, Unreachable, no_less, positive

DAS = (
    "every client's loss is convex and L-smooth",
    "C / E >= 4 sqrt(L Delta)",
    "the server steps as far as the clients, and returns a random iterate",
    "the error is the mean over clients of 5/4 to 2 times f_i(w) - f_i(w*) where "
    "nothing is clipped, and of 3 C |u_i| / (8 L E^2) where it is",
)


def clipped_error(
    *,
    rho: float,
    alpha: float,
    gamma: float,
    smoothness: float,
    steps: int,
    threshold: float,
    distance: float,
    gap: float,
) -> float:
    """Returns the right side of Theorem 2, A + B.

    Its left side is a mean over clients and rounds. A client i that is not clipped
    counts (2 - rho E / alpha - (rho E / alpha)^2) (f_i(w) - f_i(w*)), and one that is
    counts `3 C |u_i| / (8 L E^2)`. In B every client counts as not clipped, which is
    its most.

    Args:
      rho: the privacy term, (z / r) sqrt(d / K) for noise z C on the sum of r clients
        in each of K rounds. In the paper it is sqrt(q d log(1 / delta)) / (n epsilon).
      alpha: the number alpha in the choice of step, at least 1 and 2 rho E.
      gamma: the number gamma in the choice of rounds.
      smoothness: the smoothness L of every client's loss.
      steps: the number E of local steps.
      threshold: the bound C on the norm of a client's sum of gradients.
      distance: the squared distance `|w0 - w*|^2` from the start to the optimum.
      gap: the largest `f_i(w*) - min f_i` of a client, Delta.

    Raises:
      Unreachable: for an alpha or a threshold below those of the theorem.
    """
    positive(rho=rho, gamma=gamma, smoothness=smoothness, steps=steps)
    theorem = "Das et al.'s Theorem 2"
    no_less(theorem, max(1, 2 * rho * steps), alpha=alpha)
    no_less(theorem, 4 * steps * math.sqrt(smoothness * gap), threshold=threshold)
    start = threshold / steps * (smoothness * distance / gamma + gamma / smoothness)
    return rho * (start + 3 * steps * gap / (2 * alpha))


def clipped(
    *,
    target: float,
    rho: float,
    smoothness: float,
    steps: int,
    threshold: float,
    distance: float,
    gap: float,
    clients: float,
    d: int,
) -> Bound:
    """Returns step, rounds and bits to an error <= target, Das et al.'s Theorem 2.

    `gamma = L |w0 - w*|` makes A least; alpha is the smallest with A + B <= target.
    More rounds cannot lower `A = 2 C/E |w0 - w*| rho`: noise grows with them. Theorem
    4, of normalised updates, bounds its error by `1 / |u_i|`, which is not known before
    a run.

    Args:
      target: the error, in the terms of `clipped_error`.
      rho: the privacy term, as in `clipped_error`.
      smoothness: the smoothness L of every client's loss.
      steps: the number E of local steps.
      threshold: the bound C on the norm of a client's sum of gradients.
      distance: the squared distance `|w0 - w*|^2` from the start to the optimum.
      gap: the largest `f_i(w*) - min f_i` of a client, Delta.
      clients: the number r of clients expected in a round, for the bits.
      d: the number of parameters, for the bits.

    Raises:
      Unreachable: for a target that A exceeds, or a threshold below the theorem's.
      ValueError: for a constant that must be above 0 and is not.
    """
    positive(target=target, rho=rho, smoothness=smoothness, distance=distance)
    positive(threshold=threshold, steps=steps)
    least = 4 * steps * math.sqrt(smoothness * gap)
    no_less("Das et al.'s Theorem 2", least, threshold=threshold)
    gamma = smoothness * math.sqrt(distance)
    start = rho * threshold / steps * 2 * math.sqrt(distance)
    if start >= target:
        msg = (
            f"Das et al.'s Theorem 2 cannot promise less than {start:.4g} with this "
            f"noise, after however many rounds, got a target of {target:g}."
        )
        raise Unreachable(msg)
    alpha = max(1, 2 * rho * steps, 3 * steps * gap * rho / (2 * (target - start)))
    rounds = math.ceil(2 * alpha * gamma / (threshold * rho**2))
    return Bound(
        "Das et al., Theorem 2",
        rho / (2 * alpha * smoothness),
        rounds,
        steps,
        math.ceil(FLOAT_BITS * clients * d * rounds),
        DAS,
    )
