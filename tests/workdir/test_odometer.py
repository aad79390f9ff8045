"""The odometer adds up what the runs of a folder gave away."""

import pytest

from fl_sketch.privacy import composition
from fl_sketch.privacy.accounting import Plan
from fl_sketch.workdir import odometer

pytestmark = pytest.mark.fast

PLAN, Z = Plan(10, 50, 1000), 1.0


def entry(name, delta):
    return odometer.Entry(name, PLAN, Z, delta, "client", "system", False)


def test_runs_of_unlike_deltas_are_composed_at_the_largest():
    total = odometer.total([entry("one", 1e-3), entry("two", 1e-6)])
    assert total.delta == 1e-3 and total.runs == 2
    both = composition.together([(PLAN, Z)] * 2, delta=1e-3)
    assert total.epsilon == pytest.approx(both)
    assert total.epsilon < 0.9 * composition.together([(PLAN, Z)] * 2, delta=1e-6)
