"""The odometer adds up what the runs of a folder gave away."""

import pytest

from fl_sketch.privacy import composition
from fl_sketch.privacy.accounting import Plan
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.workdir import odometer

pytestmark = pytest.mark.fast

PLAN, Z = Plan(10, 50, 1000), 1.0
ONE = Guarantee(PLAN, Z, 1e-3, "rdp", 10)


def test_runs_of_unlike_deltas_are_composed_at_the_largest():
    total = odometer.total({"one": ONE, "two": ONE._replace(delta=1e-6)})
    assert total.delta == 1e-3 and total.runs == 2
    both = composition.together([(PLAN, Z)] * 2, delta=1e-3)
    assert total.epsilon == pytest.approx(both)
    assert total.epsilon < 0.9 * composition.together([(PLAN, Z)] * 2, delta=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unit": "example"}, "client and example"),
        ({"partition": "another"}, "same partition"),
    ],
)
def test_runs_without_one_total_say_why(changes, words):
    entries = {"one": ONE, "two": ONE._replace(**changes)}
    (line,), facts = odometer.lines(entries), odometer.facts(entries)
    assert line.startswith("privacy: these runs have no common epsilon. ")
    assert words in line and words in facts["no_total"]
    assert facts["epsilon_of_all"] is None
    assert odometer.lines({}) == [] and odometer.facts({}) == {}
