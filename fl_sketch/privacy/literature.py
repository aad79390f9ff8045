"""What papers claim that a mechanism costs, for comparison only; imports no jax.

No accountant uses these numbers. `table` shows them next to those of the accountants.
"""

import math

from fl_sketch.privacy import accounting, plans
from fl_sketch.privacy.guarantee import rounded_up
from fl_sketch.privacy.plans import Plan

ROW = "  {:<44} {:>16} {:>12}"


def table(plan: Plan, *, epsilon: float, delta: float) -> list[str]:
    """Returns lines of text: the noise multiplier by each formula, and its epsilon.

    Raises:
      ValueError: in one line, for an impossible plan or guarantee.
    """
    plans.require_delta(plan, delta)
    best = plans.accountant_for(plan)
    promise = {"epsilon": epsilon, "delta": delta}
    z = accounting.calibrate(plan, **promise)

    def row(name, z):
        spent = accounting.epsilon(plan, z, delta=delta, accountant=best)
        return ROW.format(name, rounded_up(z, 6), rounded_up(spent))

    def counted(name):
        if not plans.knows(name, plan):
            return ROW.format(name.upper(), "not applicable", "")
        z = accounting.calibrate(plan, accountant=name, **promise)
        return row(name.upper(), z)

    r = plan.population * plan.rate
    cohorts = f"{plan.sampling} cohorts of {r:g} among {plan.population} clients"
    if plan.sampling == "everyone":
        cohorts = f"all {plan.population} clients in every round"
    return [
        f"epsilon = {epsilon:g} at delta = {delta:g}: {plan.steps} rounds, {cohorts}, "
        f"{plan.releases} noised sum{'s' * (plan.releases > 1)} per round, "
        f"relation {plan.relation}",
        ROW.format("", "noise multiplier", f"epsilon, {best}"),
        *map(counted, plans.ACCOUNTANTS),
        row(
            "advanced composition (Song et al., Lemma H.3)",
            advanced_noise_multiplier(plan, **promise),
        ),
        row(
            "Das et al., Theorem 1, with constant 1",
            das_noise_multiplier(plan, **promise),
        ),
        f"noise on the sum of messages: {rounded_up(z, 5)} C; on the mean over {r:g}: "
        f"{rounded_up(z / r, 5)} C, where C is the bound on one message",
        "the last two rows are for comparison only: advanced composition ignores the "
        "sampling of cohorts, and Das et al. do not state their constant",
    ]


def advanced_composition(plan: Plan, noise_multiplier: float, *, delta: float) -> float:
    """Returns the epsilon of Song et al., Appendix H.

    Every release is (e, d)-private by the classical Gaussian mechanism, z = sqrt(2
    log(1.25/d)) / e (Lemma H.7). Composed by Lemma H.3 as printed, k of them cost
    sqrt(2 k log(1/d')) e + 2 k e^2 with d' + k d = delta; here d' = k d. Sampling earns
    no credit, as in their Theorem H.11. The result is infinite if e > 1, which the
    lemma excludes.
    """
    plans.between(0, 1, delta=delta)
    count = plan.steps * plan.releases
    if accounting.certain(plan, noise_multiplier, None):
        return 0.0 if not count or plan.rate == 0 else math.inf
    each = math.sqrt(2 * math.log(1.25 * 2 * count / delta))
    each *= plan.sensitivity / noise_multiplier
    if each > 1:
        return math.inf
    composed = math.sqrt(2 * count * math.log(2 / delta)) * each
    return composed + 2 * count * each**2


def advanced_noise_multiplier(plan: Plan, *, epsilon: float, delta: float) -> float:
    """Returns the noise multiplier at which `advanced_composition` is `epsilon`."""
    count = plan.steps * plan.releases
    half = math.sqrt(2 * count * math.log(2 / delta)) / 2
    each = epsilon / (half + math.sqrt(half**2 + 2 * count * epsilon))
    classical = math.sqrt(2 * math.log(1.25 * 2 * count / delta))
    return classical * plan.sensitivity / min(each, 1.0)


def das_noise_multiplier(
    plan: Plan, *, epsilon: float, delta: float, constant: float = 1.0
) -> float:
    """Returns z by Das et al., Theorem 1, with a `constant` q that they do not state.

    Noise of sigma^2 = q K C^2 log(1/delta) / (n epsilon)^2 on the mean over r clients
    is z = (r / n) sqrt(q K log(1/delta)) / epsilon on the sum, for r of n clients in a
    round and K releases in all. It is derived by the moments accountant and holds only
    for some q and small epsilon, so it is not a guarantee.
    """
    count = plan.steps * plan.releases
    return plan.rate * math.sqrt(constant * count * math.log(1 / delta)) / epsilon


def count_sketch_claim(
    *, rows: int, cols: int, length: int, sigma: float, bound: float, alpha: float
) -> float:
    """Returns the epsilon that FedSKETCH's Theorem 1 claims of a sketch without noise.

    t ln(1 + alpha C^2 m (m - 1) (1 + ln(l - m)) / (sigma^2 (l - 2))) for t rows and m
    columns. It assumes that the l numbers sketched are independent draws of
    N(0, sigma^2), at most C in size (Assumption 1). Gradients are not. Nothing in
    fl_sketch gives credit for it.

    Args:
      rows: t.
      cols: m.
      length: l.
      sigma: the standard deviation that the numbers are assumed to have.
      bound: C.
      alpha: the free number of the theorem.

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
