"""Several runs together: composed as rounds are, or the best of a secret number."""

import math

import numpy as np
import pytest

from fl_sketch.privacy import accounting, composition
from fl_sketch.privacy.accounting import Plan
from fl_sketch.privacy.composition import Trials

pytestmark = pytest.mark.fast

PLAN, Z, DELTA = Plan(100, 50, 1000), 2.0, 1e-5


def test_equal_runs_are_one_long_run_and_order_does_not_matter():
    long = accounting.spent(PLAN._replace(steps=300), Z, delta=DELTA)
    assert composition.together([(PLAN, Z)] * 3, delta=DELTA) == pytest.approx(long)
    other = (PLAN._replace(steps=20), 3.0)
    one = composition.together([(PLAN, Z), other], delta=DELTA)
    assert composition.together([other, (PLAN, Z)], delta=DELTA) == pytest.approx(one)
    alone = accounting.spent(PLAN, Z, delta=DELTA)
    more = accounting.spent(PLAN._replace(steps=120), Z, delta=DELTA)
    assert alone < one < more


def test_what_gives_nothing_away_costs_nothing_and_no_noise_costs_all():
    assert composition.together([], delta=DELTA) == 0.0
    assert composition.together([(PLAN._replace(steps=0), Z)], delta=DELTA) == 0.0
    assert math.isinf(composition.together([(PLAN, Z), (PLAN, 0.0)], delta=DELTA))


def test_runs_of_samplers_that_no_one_accountant_knows_share_delta():
    fixed = Plan(50, 40, 50, "fixed", relation="replace_one")
    both = composition.together([(PLAN, Z), (fixed, 20.0)], delta=DELTA)
    alike = PLAN._replace(relation="replace_one")
    expected = accounting.spent(alike, Z, delta=DELTA / 2)
    expected += accounting.spent(fixed, 20.0, delta=DELTA / 2)
    assert both == pytest.approx(expected, rel=1e-3)


def test_runs_of_unlike_relations_are_counted_by_the_one_that_all_keep():
    """Gaussians of 2C / z1 and 2C / z2 are one of their length together."""
    added = Plan(1, 50, 50, "everyone")
    replaced = added._replace(relation="replace_one")
    both = composition.together([(added, 1.0), (replaced, 20.0)], delta=DELTA)
    one = accounting.spent(replaced, (1 + 1 / 400) ** -0.5, delta=DELTA)
    assert both == pytest.approx(one, rel=1e-3)
    assert both > 2 * accounting.spent(added, 1.0, delta=DELTA)


def test_together_they_cost_at_least_the_dearest_and_at_most_the_sum():
    parts = [(PLAN, 1.5), (PLAN._replace(sample=20), 1.0), (PLAN, 4.0)]
    each = [accounting.spent(plan, z, delta=DELTA) for plan, z in parts]
    thirds = [accounting.spent(plan, z, delta=DELTA / 3) for plan, z in parts]
    assert max(each) < composition.together(parts, delta=DELTA) <= sum(thirds)


def test_every_run_of_a_total_pays_for_its_cut():
    """Each takes 0.6 of what delta allows."""
    plan = PLAN._replace(cut=0.6 * DELTA / 1000 / PLAN.steps)
    parts = [(plan, Z), (plan._replace(sample=20), Z)]
    for part in parts:
        assert math.isfinite(composition.together([part], delta=DELTA))
    assert math.isinf(composition.together(parts, delta=DELTA))


def geometric(plan, z, mean):
    """Theorem 2 of Papernot and Steinke for eta = 1, on orders of its own."""
    orders = np.concatenate([np.linspace(1.1, 20, 400), np.arange(21, 400)])
    rdp = plan.steps * orders / (2 * z**2)  # of full batches
    extra = np.min(2 * (1 - 1 / orders) * rdp + 2 * math.log(mean) / orders)
    return np.min(
        rdp
        + extra
        + math.log(mean) / (orders - 1)
        + np.log1p(-1 / orders)
        - np.log(DELTA * orders) / (orders - 1)
    )


def test_a_private_selection_costs_what_its_theorem_says():
    plan, z = Plan(10, 100, 100, "everyone"), 20.0
    found = composition.best_of_a_random_number(plan, z, Trials(10.0), delta=DELTA)
    assert found == pytest.approx(geometric(plan, z, 10.0), rel=0.02)
    alone = accounting.spent(plan, z, delta=DELTA)
    grid = composition.together([(plan, z)] * 45, delta=DELTA)
    assert alone < found < grid


def test_ten_trials_cost_what_the_docs_say():
    plan = Plan(100, 100, 400)  # of configs/private_safl.py
    z = accounting.calibrate(plan, epsilon=2.0, delta=DELTA)
    found = composition.best_of_a_random_number(plan, z, Trials(10.0), delta=DELTA)
    grid = composition.together([(plan, z)] * 10, delta=DELTA)
    assert (round(found, 1), round(grid, 1)) == (4.3, 7.4)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0])
def test_more_trials_cost_more(shape):
    few, many = (
        composition.best_of_a_random_number(PLAN, Z, Trials(mean, shape), delta=DELTA)
        for mean in (2.0, 50.0)
    )
    assert few < many < math.inf


def test_every_trial_of_a_selection_pays_for_its_ends():
    """One run takes a tenth of what delta allows, and five or twenty run."""
    plan = PLAN._replace(cut=DELTA / 1000 / PLAN.steps / 10)
    costs = [
        composition.best_of_a_random_number(plan, Z, Trials(mean), delta=DELTA)
        for mean in (5.0, 20.0)
    ]
    assert math.isfinite(costs[0]) and math.isinf(costs[1])
