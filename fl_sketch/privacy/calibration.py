"""How much noise a promise needs, by each way of counting; no jax in here."""

from fl_sketch.privacy import accounting, literature
from fl_sketch.privacy.accounting import Plan

ROW = "  {:<44} {:>16} {:>12}"


def table(plan: Plan, *, epsilon: float, delta: float) -> list[str]:
    """Returns lines of text: the noise multiplier by each formula, its true epsilon.

    Args:
      plan: the plan of what will be released.
      epsilon: the promise.
      delta: the delta of the promise.

    Raises:
      ValueError: in one line, for what is no promise or no plan.
    """
    accounting.require_delta(plan, delta)
    best = accounting.accountant_for(plan)
    z = accounting.calibrate(plan, epsilon=epsilon, delta=delta)  # says what is wrong

    def row(name, z):
        if z is None:
            return ROW.format(name, "does not know it", "")
        spent = accounting.epsilon(plan, z, delta=delta, accountant=best)
        return ROW.format(name, f"{z:.5f}", f"{spent:.4f}")

    found = {
        name: _calibrated(plan, epsilon, delta, name) for name in accounting.ACCOUNTANTS
    }
    das = literature.das_noise_multiplier(plan, epsilon=epsilon, delta=delta)
    song = advanced_noise_multiplier(plan, epsilon=epsilon, delta=delta)
    r = plan.population * plan.rate
    return [
        f"epsilon {epsilon:g} at delta {delta:g}: {plan.steps} rounds, "
        f"{plan.sampling} cohorts of {r:g} among {plan.population} clients, "
        f"{plan.releases} release{'s' * (plan.releases > 1)} a round, {plan.relation}",
        ROW.format("", "noise multiplier", f"epsilon, {best}"),
        row("PLD", found["pld"]),
        row("RDP", found["rdp"]),
        row("advanced composition (Song et al., Lemma H.3)", song),
        row("Das et al., Theorem 1, its constant as 1", das),
        f"noise on the sum of messages: {z:.5g} C; on the mean over {r:g}: "
        f"{z / r:.5g} C; C bounds one message",
        "the last two are for comparison: advanced composition gives no credit for "
        "sampling, and the constant of Das et al. is nowhere stated",
    ]


def advanced_noise_multiplier(plan: Plan, *, epsilon: float, delta: float) -> float:
    """Returns the noise multiplier that `literature.advanced_composition` asks for.

    Args:
      plan: the plan of what will be released.
      epsilon: the promise, above zero.
      delta: the delta of the promise.
    """
    low, high = 0.0, 1.0
    while not literature.advanced_composition(plan, high, delta=delta) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        spent = literature.advanced_composition(plan, middle, delta=delta)
        low, high = (low, middle) if spent <= epsilon else (middle, high)
    return high


def _calibrated(plan, epsilon, delta, accountant) -> float | None:
    try:
        accounting.require(plan, accountant)
    except ValueError:
        return None
    return accounting.calibrate(
        plan, epsilon=epsilon, delta=delta, accountant=accountant
    )
