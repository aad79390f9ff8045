"""Computes the total budget of several runs on the same data; does not import jax.

>>> plan = Plan(steps=200, sample=50, population=1000)
>>> both = together([(plan, 2.0), (plan, 2.0)], delta=1e-5)
>>> round(both, 2) == round(accounting.spent(plan._replace(steps=400), 2.0, \
delta=1e-5), 2)
True

Runs whose number and noise were fixed in advance compose like rounds, in any order. If
the release of one run determined the plan of a later one, the total describes the plans
that were run, and is not a guarantee given in advance. A private choice of the best of
several runs costs less than all of them, if their number is random and stays secret:
`best_of_a_random_number`.
"""

import collections
import math
from collections.abc import Sequence
from typing import NamedTuple

from fl_sketch.privacy import accounting, plans
from fl_sketch.privacy.plans import Plan


class Trials(NamedTuple):
    """The distribution of the number of runs of a private selection.

    It is the truncated negative binomial, which is never zero.

    Attributes:
      mean: the mean number, above one.
      shape: eta of the distribution: 1 is geometric, 0 logarithmic.
    """

    mean: float
    shape: float = 1.0


def together(parts: Sequence[tuple[Plan, float]], *, delta: float) -> float:
    """Returns the epsilon of all runs together, at `delta`.

    It is for the relation that all runs keep (`common_relation`).

    Args:
      parts: the pair (plan, noise multiplier) of each run.
      delta: the delta of the total.
    """
    plans.between(plans.LEAST_DELTA, 1, delta=delta)
    relation = common_relation([plan for plan, _ in parts])
    steps: dict[tuple[Plan, float], int] = collections.Counter()
    for plan, z in parts:
        plan = plan._replace(relation=relation)
        known = accounting.certain(plan, z, None)
        if known == "everything":
            return math.inf
        if not known:
            steps[plan._replace(steps=1), z] += plan.steps
    groups = _by_accountant(
        [(plan._replace(steps=count), z) for (plan, z), count in steps.items()]
    )
    if not groups:
        return 0.0
    each = delta / len(groups)  # basic composition of what no one accountant knows
    return sum(_epsilon(name, runs, each) for name, runs in groups.items())


def common_relation(plans: Sequence[Plan]) -> str:
    """Returns the common relation of the guarantees of all `plans`.

    A run that hides whether a unit takes part also hides its data, at twice the
    sensitivity. The converse is false.
    """
    replaced = any(plan.relation == "replace_one" for plan in plans)
    return "replace_one" if replaced else "add_remove"


def best_of_a_random_number(
    plan: Plan, noise_multiplier: float, trials: Trials, *, delta: float
) -> float:
    """Returns the epsilon of the best of a secret random number of equal runs.

    All runs have the same plan and noise, whatever is tuned. The score that decides
    must not depend on the protected data, or must be part of what each run releases.
    One run is released. The others, and their number, stay secret.

    Reference: Papernot and Steinke (2022), Theorems 2 and 6, as in dp-accounting.
    """
    from dp_accounting import dp_event

    require(trials)
    known = accounting.certain(plan, noise_multiplier, "rdp")
    if known:
        return 0.0 if known == "nothing" else math.inf
    once = accounting.event(plan, noise_multiplier, "rdp")
    repeated = dp_event.RepeatAndSelectDpEvent(once, trials.mean, trials.shape)
    with accounting.without_warnings():
        accountant = accounting.accountant_of(plan, noise_multiplier, "rdp")
        accountant.compose(repeated)
    most = delta / 1000
    bound = accountant.get_epsilon(delta - most)
    extra = trials.mean * accounting.beyond(plan, noise_multiplier, bound)
    return float(accountant.get_epsilon(delta - extra)) if extra <= most else math.inf


def require(trials: Trials) -> None:
    """Raises a ValueError unless `trials` are the parameters of a distribution."""
    if not (trials.mean > 1 and math.isfinite(trials.mean)):
        msg = f"Expected a mean number of trials > 1, got mean={trials.mean}."
        raise ValueError(msg)
    if not 0 <= trials.shape < math.inf:
        msg = f"Expected shape >= 0 and finite, got shape={trials.shape}."
        raise ValueError(msg)


def _by_accountant(parts: Sequence[tuple[Plan, float]]) -> dict[str, list]:
    """Returns the runs by the name of their accountant: a single one if possible."""
    common = [
        name
        for name in plans.ACCOUNTANTS
        if all(plans.knows(name, plan) for plan, _ in parts)
    ]
    groups: dict[str, list] = {}
    for plan, z in parts:
        name = common[0] if common else plans.accountant_for(plan)
        groups.setdefault(name, []).append((plan, z))
    return groups


def _epsilon(name: str, parts: Sequence[tuple[Plan, float]], delta: float) -> float:
    least = min(parts, key=lambda part: part[1] / part[0].releases ** 0.5)
    with accounting.without_warnings():
        accountant = accounting.accountant_of(*least, name)
        for plan, z in parts:
            accountant.compose(accounting.event(plan, z, name))
    most = delta / 1000
    bound = accountant.get_epsilon(delta - most)
    extra = sum(accounting.beyond(plan, z, bound) for plan, z in parts)
    return float(accountant.get_epsilon(delta - extra)) if extra <= most else math.inf
