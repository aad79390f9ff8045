"""What several runs on the same data give away together; no jax in here.

>>> plan = Plan(steps=200, sample=50, population=1000)
>>> both = together([(plan, 2.0), (plan, 2.0)], delta=1e-5)
>>> round(both, 2) == round(accounting.spent(plan._replace(steps=400), 2.0, \
delta=1e-5), 2)
True

Runs whose number and noise were fixed beforehand are composed as rounds are, whatever
order they came in. If what an earlier run released chose the plan of a later one, the
total is that of the plans that were run, and no promise that was given beforehand. To
choose the best of several privately, without paying for all of them, their number must
be random and stay secret: `best_of_a_random_number`.
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
      mean: the mean of the number, above one.
      shape: eta of the truncated negative binomial: 1 is geometric, 0 logarithmic.
        None of these numbers is zero, as a Poisson number may be.
    """

    mean: float
    shape: float = 1.0


def together(parts: Sequence[tuple[Plan, float]], *, delta: float) -> float:
    """Returns the epsilon of all runs together, at this delta.

    It is for one relation: where one of the runs protects only against replacing,
    all are counted so (see `under_one_relation`).

    Args:
      parts: the pair (plan, noise multiplier) of each run.
      delta: the delta of the promise about all of them.
    """
    accounting.between(0, 1, delta=delta)
    counted: dict[tuple[Plan, float], int] = collections.Counter()
    for plan, z in under_one_relation(parts):
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
    return sum(_epsilon(name, own, each) for name, own in groups.items())


def under_one_relation(
    parts: Sequence[tuple[Plan, float]],
) -> list[tuple[Plan, float]]:
    """Returns the runs by the one relation for which all of them promise something.

    A run that hides whether somebody is there also hides what their data are, at
    twice the sensitivity. The other way round nothing follows.

    Args:
      parts: the pair (plan, noise multiplier) of each run.
    """
    relation = common_relation([plan for plan, _ in parts])
    return [(plan._replace(relation=relation), z) for plan, z in parts]


def common_relation(plans: Sequence[Plan]) -> str:
    """Returns the one relation for which all of `plans` promise something."""
    alike = any(plan.relation == "replace_one" for plan in plans)
    return "replace_one" if alike else "add_remove"


def best_of_a_random_number(
    plan: Plan, noise_multiplier: float, trials: Trials, *, delta: float
) -> float:
    """Returns the epsilon of the best of a secret random number of equal runs.

    Equal means that plan and noise are the same whatever was tuned. The score that
    decides must not look at the protected data, or be part of what each run released.
    What comes out is one run; all others, and how many there were, stay secret.

    Args:
      plan: the plan of one run.
      noise_multiplier: the noise multiplier z of each.
      trials: the distribution of their number.
      delta: the delta of the promise.

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
    """Raises a ValueError unless `trials` are the parameters of a distribution.

    The mean must be above one and finite, the shape finite and not negative.
    """
    if not (trials.mean > 1 and math.isfinite(trials.mean)):
        msg = f"Expected a mean number of trials > 1, got mean={trials.mean}."
        raise ValueError(msg)
    if not 0 <= trials.shape < math.inf:
        msg = f"Expected shape >= 0 and finite, got shape={trials.shape}."
        raise ValueError(msg)


def _groups(parts: Sequence[tuple[Plan, float]]) -> dict[str, list]:
    """Returns the runs by accountant: one for all of them if one can."""
    common = [
        name
        for name in accounting.ACCOUNTANTS
        if all(_knows(name, plan) for plan, _ in parts)
    ]
    groups: dict[str, list] = {}
    for plan, z in parts:
        name = common[0] if common else accounting.accountant_for(plan)
        groups.setdefault(name, []).append((plan, z))
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
