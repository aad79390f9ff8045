"""Any legal value of any key runs two rounds, or is refused in one line."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import drawn

pytestmark = pytest.mark.slow


@settings(
    max_examples=24,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(st.data())
@pytest.mark.filterwarnings("ignore")
def test_a_random_config_runs_or_is_refused_in_one_line(data):
    changes = drawn.changes_of(lambda some: data.draw(st.sampled_from(some)))
    kind, why = drawn.outcome(changes)
    assert kind in ("ran", "refused"), f"{changes}\n{why}"


def test_what_is_drawn_reaches_every_key_and_both_ends():
    own, keys, kinds = random.Random(0), set(), set()
    for _ in range(2000):
        keys |= {*drawn.changes_of(own.choice)}
    assert keys == {*drawn.KEYS}
    for rounds in (2, -1):
        kinds.add(drawn.outcome({"rounds": rounds})[0])
    assert kinds == {"ran", "refused"}
