"""What several runs on the same data give away together; no jax in here.

>>> plan = Plan(steps=200, sample=50, population=1000)
>>> both = together([(plan, 2.0), (plan, 2.0)], delta=1e-5)
>>> round(both, 2) == round(accounting.spent(plan._replace(steps=400), 2.0, \
delta=1e-5), 2)
True

Runs whose number and noise were fixed beforehand are composed as rounds are, whatever
order they came in. To choose the best of several privately, without paying for all of
them, their number must be random and stay secret: `best_of_a_random_number`.
"""

import collections
import math
from collections.abc import Sequence
from typing import NamedTuple

from fl_sketch.privacy import accounting
from fl_sketch.privacy.accounting import Plan


class Trials(NamedTuple):
    """How many runs a private selection makes: a random number of this distribution.

    Attributes:
      mean: of the number, at least one.
      shape: eta of the truncated negative binomial: 1 is geometric, 0 logarithmic,
        infinity Poisson (which may be zero: then nothing is chosen).
    """

    mean: float
    shape: float = 1.0


def together(parts: Sequence[tuple[Plan, float]], *, delta: float) -> float:
    """Returns the epsilon of all runs together, at this delta.

    Args:
      parts: (plan, noise multiplier) of each run.
      delta: of the promise about all of them.
    """
    accounting.between(0, 1, delta=delta)
    counted: dict[tuple[Plan, float], int] = collections.Counter()
    for plan, z in parts:
        known = accounting.certain(plan, z, None)
        if known == "everything":
            return math.inf
        if not known:
            counted[plan._replace(steps=1), z] += plan.steps
    whole = [(plan._replace(steps=n), z) for (plan, z), n in counted.items()]
    groups = _groups(whole)
    if not groups:
        return 0.0
    each = delta / len(groups)  # basic composition of what no one accountant knows
    return sum(_epsilon(name, own, each) for (_, name), own in groups.items())


def best_of_a_random_number(
    plan: Plan, noise_multiplier: float, trials: Trials, *, delta: float
) -> float:
    """Returns the epsilon of the best of a secret random number of equal runs.

    The score that decides must not look at the protected data, or be part of what each
    run released. What comes out is one run; all others, and how many there were, stay
    secret.

    Args:
      plan: one run.
      noise_multiplier: z of each.
      trials: the distribution of their number.
      delta: of the promise.

    Reference: Papernot and Steinke (2022), Theorems 2 and 6, as dp-accounting has them.
    """
    from dp_accounting import dp_event

    require(trials)
    known = accounting.certain(plan, noise_multiplier, "rdp")
    if known:
        return 0.0 if known == "nothing" else math.inf
    once = accounting.event(plan, noise_multiplier, "rdp")
    repeated = dp_event.RepeatAndSelectDpEvent(once, trials.mean, trials.shape)
    extra = trials.mean * accounting.beyond(plan, noise_multiplier, math.inf)
    if extra > delta / 1000:
        return math.inf
    with accounting.without_warnings():
        counted = accounting.accountant_of(plan, noise_multiplier, "rdp").compose(
            repeated
        )
    return counted.get_epsilon(delta - extra)


def require(trials: Trials) -> None:
    """Raises a ValueError unless these are the parameters of a distribution."""
    if not (trials.mean > 1 and math.isfinite(trials.mean)):
        msg = f"Expected a mean number of trials > 1, got mean={trials.mean}."
        raise ValueError(msg)
    if not trials.shape >= 0:
        msg = f"Expected shape >= 0, got shape={trials.shape}."
        raise ValueError(msg)


def _groups(parts: Sequence[tuple[Plan, float]]) -> dict[tuple[str, str], list]:
    """Returns the runs by relation and accountant: one for all of them if one can."""
    groups: dict[tuple[str, str], list] = {}
    for relation in sorted({plan.relation for plan, _ in parts}):
        own = [part for part in parts if part[0].relation == relation]
        common = [
            name
            for name in accounting.ACCOUNTANTS
            if all(_knows(name, plan) for plan, _ in own)
        ]
        for plan, z in own:
            name = common[0] if common else accounting.accountant_for(plan)
            groups.setdefault((relation, name), []).append((plan, z))
    return groups


def _knows(name: str, plan: Plan) -> bool:
    try:
        accounting.require(plan, name)
    except ValueError:
        return False
    return True


def _epsilon(name: str, parts: Sequence[tuple[Plan, float]], delta: float) -> float:
    least = min(parts, key=lambda part: part[1] / part[0].releases ** 0.5)
    with accounting.without_warnings():
        counted = accounting.accountant_of(*least, name)
        for plan, z in parts:
            counted.compose(accounting.event(plan, z, name))
    most = delta / 1000
    bound = counted.get_epsilon(delta - most)
    extra = sum(accounting.beyond(plan, z, bound) for plan, z in parts)
    return counted.get_epsilon(delta - extra) if extra <= most else math.inf
