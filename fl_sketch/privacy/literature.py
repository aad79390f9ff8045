"""What papers claim a mechanism costs: for comparison only; no jax in here.

None of these numbers reaches the accountant.
"""

import math

from fl_sketch.privacy import accounting
from fl_sketch.privacy.accounting import Plan


def advanced_composition(plan: Plan, noise_multiplier: float, *, delta: float) -> float:
    """Returns the epsilon of Song et al., Appendix H: for comparison only.

    Every release is (e, d)-private by the classical Gaussian mechanism, z = sqrt(2
    log(1.25/d)) / e (Lemma H.7). Composed by Lemma H.3 as printed, k of them cost
    sqrt(2 k log(1/d')) e + 2 k e^2 with d' + k d = delta; here d' = k d. Sampling gets
    no credit, as in their Theorem H.11. Infinite where e > 1, which the lemma excludes.

    Args:
      plan: the plan of what is released; k is its steps times its releases.
      noise_multiplier: the noise z on a sum over the bound of one message.
      delta: the delta of the promise.
    """
    accounting.between(0, 1, delta=delta)
    count = plan.steps * plan.releases
    if accounting.certain(plan, noise_multiplier, None):
        return 0.0 if not count or plan.rate == 0 else math.inf
    each = math.sqrt(2 * math.log(1.25 * 2 * count / delta))
    each *= plan.sensitivity / noise_multiplier
    if each > 1:
        return math.inf
    composed = math.sqrt(2 * count * math.log(2 / delta)) * each
    return composed + 2 * count * each**2


def das_noise_multiplier(
    plan: Plan, *, epsilon: float, delta: float, constant: float = 1.0
) -> float:
    """Returns z by Das et al., Theorem 1, whose constant nobody states.

    Noise of sigma^2 = q K C^2 log(1/delta) / (n epsilon)^2 on the mean over r clients
    is z = (r / n) sqrt(q K log(1/delta)) / epsilon on the sum. It comes from the
    moments accountant and holds for some q and small epsilon only: no promise.

    Args:
      plan: the plan of what will be released: r of n clients a round, K releases in
        all.
      epsilon: the promise.
      delta: the delta of the promise.
      constant: the constant q.
    """
    count = plan.steps * plan.releases
    return plan.rate * math.sqrt(constant * count * math.log(1 / delta)) / epsilon


def count_sketch_claim(
    *, rows: int, cols: int, length: int, sigma: float, bound: float, alpha: float
) -> float:
    """Returns the epsilon that FedSKETCH's Theorem 1 claims of a sketch without noise.

    t ln(1 + alpha C^2 m (m - 1) (1 + ln(l - m)) / (sigma^2 (l - 2))). It assumes that
    the l numbers sketched are independent draws of N(0, sigma^2), at most C in size
    (Assumption 1): gradients are not. Nothing in fl_sketch gives credit for it.

    Args:
      rows: the number t of rows of the count sketch.
      cols: the number m of columns of the count sketch.
      length: the number l of numbers sketched.
      sigma: the standard deviation that the numbers are assumed to have.
      bound: the most that any of them is assumed to be, C.
      alpha: the theorem's free number.

    Raises:
      ValueError: if its condition on alpha does not hold, or unless 2 < m < l - 1.
    """
    if not 2 < cols < length - 1:
        msg = f"Expected 2 < cols < length - 1 = {length - 1}, got cols={cols}."
        raise ValueError(msg)
    inside = alpha * bound**2 * cols * (cols - 1) / (sigma**2 * (length - 2))
    inside *= 1 + math.log(length - cols)
    if inside > 0.5 - 1 / alpha:
        msg = (
            f"Expected the theorem's condition {inside:.4g} <= 1/2 - 1/alpha = "
            f"{0.5 - 1 / alpha:.4g}, got alpha={alpha}."
        )
        raise ValueError(msg)
    return rows * math.log1p(inside)
