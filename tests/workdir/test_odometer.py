"""The privacy ledger adds up what the runs of a folder gave away."""

import json

import pytest

from fl_sketch.privacy import composition
from fl_sketch.privacy.accounting import Plan
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.privacy.lattice import Integers
from fl_sketch.workdir import odometer
from tests.refusals import refused

pytestmark = pytest.mark.fast

PLAN, Z = Plan(10, 50, 1000), 1.0
ONE = Guarantee(PLAN, Z, 1e-3, "rdp", 10)


def entry(steps, **more):
    return ONE._replace(plan=PLAN._replace(steps=steps), **more)


def test_it_keeps_what_was_noted_and_never_goes_back(tmp_path):
    assert odometer.read(tmp_path) == {}
    one = entry(4, partition="a", secret="b")
    odometer.note(tmp_path, {"one": one, "two": entry(2)})
    assert odometer.read(tmp_path) == {"one": one, "two": entry(2)}
    odometer.note(tmp_path, {"one": entry(3), "two": entry(5)})
    assert odometer.read(tmp_path) == {"one": one, "two": entry(5)}
    for change in ({"noise_multiplier": 9.0}, {"plan": PLAN._replace(sample=5)}):
        with refused("'two'", "began"):
            odometer.note(tmp_path, {"two": entry(6)._replace(**change)})
    odometer.set_apart(tmp_path, ["two", "none"])
    names = [*odometer.read(tmp_path)]
    assert names[0] == "one" and names[1].startswith("two" + odometer.INTERRUPTED)


@pytest.mark.parametrize("of", ["entry", "plan"])
def test_an_entry_with_what_nobody_counts_now_is_refused(tmp_path, of):
    sums = Integers(16, 50, lengths=(130,))
    whole = ONE._replace(plan=PLAN._replace(integers=sums))
    odometer.write(tmp_path, {"run": whole})
    assert odometer.read(tmp_path) == {"run": whole}
    path = tmp_path / odometer.FILE
    ((name, entry),) = json.loads(path.read_text())
    (entry if of == "entry" else entry["plan"])["trials"] = 3
    path.write_text(json.dumps([(name, entry)]))
    with refused(path.parent):
        odometer.read(tmp_path)


def test_runs_of_unlike_deltas_are_composed_at_the_largest():
    total = odometer.total({"one": ONE, "two": ONE._replace(delta=1e-6)})
    assert total.delta == 1e-3 and total.runs == 2
    both = composition.together([(PLAN, Z)] * 2, delta=1e-3)
    assert total.epsilon == pytest.approx(both)
    assert odometer.total({"one": ONE._replace(public=True)}) is None


def test_a_total_is_for_the_relation_that_all_runs_keep():
    other = ONE._replace(plan=Plan(10, 1000, 1000, "everyone", relation="replace_one"))
    assert odometer.total({"one": ONE}).relation == "add_remove"
    assert odometer.total({"one": ONE, "two": other}).relation == "replace_one"


@pytest.mark.parametrize("changes", [{"unit": "example"}, {"partition": "another"}])
def test_runs_without_one_total_say_why(changes):
    entries = {"one": ONE, "two": ONE._replace(**changes)}
    with pytest.raises(odometer.NoTotal):
        odometer.total(entries)
    (line,), facts = odometer.lines(entries), odometer.facts(entries)
    assert "no common epsilon" in line and facts["epsilon_of_all"] is None
    assert odometer.lines({}) == [] and odometer.facts({}) == {}
