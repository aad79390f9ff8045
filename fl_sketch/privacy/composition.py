"""Computes the total budget of several runs on the same data; does not import jax.

>>> plan = Plan(steps=200, sample=50, population=1000)
>>> both = together([(plan, 2.0), (plan, 2.0)], delta=1e-5)
>>> both == accounting.epsilon(plan._replace(steps=400), 2.0, delta=1e-5)
True

Runs whose number and noise were fixed in advance compose like rounds, in any order. If
the release of one run determined the plan of a later one, the total describes the plans
that were run, and is not a guarantee given in advance.
"""

import collections
import math
from collections.abc import Sequence

from fl_sketch.privacy import accounting
from fl_sketch.privacy.accounting import Plan


def together(parts: Sequence[tuple[Plan, float]], *, delta: float) -> float:
    """Returns the epsilon of all runs together, for the relation that all keep."""
    accounting.between(accounting.LEAST_DELTA, 1, delta=delta)
    relation = common_relation([plan for plan, _ in parts])
    steps: dict[tuple[Plan, float], int] = collections.Counter()
    for plan, z in parts:
        plan = plan._replace(relation=relation)
        known = accounting.certain(plan, z, accounting.accountant_for(plan))
        if known == math.inf:
            return math.inf
        if known is None:
            steps[plan._replace(steps=1), z] += plan.steps
    runs = [(plan._replace(steps=count), z) for (plan, z), count in steps.items()]
    common = [
        name
        for name in accounting.ACCOUNTANTS
        if all(_knows(name, plan) for plan, _ in runs)
    ]
    groups = collections.defaultdict(list)
    for plan, z in runs:
        groups[common[0] if common else accounting.accountant_for(plan)] += [(plan, z)]
    # Basic composition of what no one accountant knows.
    total = 0.0
    for name, group in groups.items():
        total += accounting.composed(tuple(group), name, delta / len(groups))
    return total


def common_relation(plans: Sequence[Plan]) -> str:
    """Returns the common relation of the guarantees of all `plans`.

    A run that hides whether a unit takes part also hides its data, at twice the
    sensitivity. The converse is false.
    """
    replaced = any(plan.relation == "replace_one" for plan in plans)
    return "replace_one" if replaced else "add_remove"


def _knows(accountant: str, plan: Plan) -> bool:
    try:
        accounting.require(plan, accountant)
    except ValueError:
        return False
    return True
