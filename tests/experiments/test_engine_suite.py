"""The yardstick and the engine do the same work, and the rows say what was timed."""

import math

import chex
import jax
import pytest

from fl_sketch.core import trees
from fl_sketch.experiments.bench import engine_suite
from fl_sketch.experiments.bench.engine_forms import FORMS, form, prepare
from fl_sketch.experiments.bench.workloads import WORKLOADS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "devices", "chunk"),
    [("W2", 2, 2), ("W3", 1, 1), ("W3", 2, 1), ("W3", 2, 2)],
)
def test_the_round_by_hand_and_the_engines_make_the_same_model(name, devices, chunk):
    # Five clients are no multiple of two places: there the last ones weigh nothing.
    setting = prepare(WORKLOADS[name]._replace(cohort=5), chunk, devices)
    by_hand, engine = (form(setting, name).timed for name in ("plain", "engine"))
    params, state = by_hand.call(by_hand.start()), engine.call(engine.start())
    chex.assert_trees_all_close(state.server.params, params, rtol=1e-5, atol=1e-5)
    moved = jax.tree.map(lambda a, b: abs(a - b).max(), params, setting.params)
    assert min(jax.tree.leaves(moved)) > 1e-4


def test_workloads_have_the_sizes_they_are_known_by():
    sizes = {"W1": 1_626_442, "W2": 61_706, "W3": 7_850, "W4": 61_706, "W5": 269_722}
    sizes["W6"] = 5_423_122
    for name, size in sizes.items():
        work = WORKLOADS[name]._replace(population=20, cohort=3, examples=1000)
        setting = prepare(work, devices=1)
        assert trees.size(setting.params) == size
        batches = 1 if work.full_batch else work.steps
        assert setting.plan.shape == (3, batches, work.batch)


def test_no_two_clients_share_examples():
    setting = prepare(WORKLOADS["W4"]._replace(population=9, cohort=9), devices=1)
    assert len(set(setting.plan[0].ravel().tolist())) == 60  # three passes over all
    owners = [set(rows.ravel().tolist()) for rows in setting.plan]
    assert sum(map(len, owners)) == len(set.union(*owners)) == 9 * 60


def test_every_form_has_a_row_that_adds_up():
    rows = list(engine_suite.run(["W3"], FORMS, rounds=3, chunk=1, cohort=4))
    assert [row.form for row in rows] == list(FORMS)
    for row in rows:
        assert row.workload == "W3" and row.cohort == 4 and row.d == 7850
        assert row.clients_per_second == pytest.approx(4 / row.seconds)
        assert row.compile_seconds > 0 and row.ratio > 0 and row.note == ""
        assert row.trace_seconds > 0 and row.first_seconds > 0
        assert row.gigaflops > 0 and 0 < row.of_peak < 2
        assert 0 < row.program_megabytes < row.peak_megabytes < math.inf
        assert (row.share is None) == (row.form in ("plain", "engine"))
    assert rows[0].ratio == 1


def test_what_is_compared_may_be_left_out():
    [row] = engine_suite.run(["W3"], ["count_sketch"], rounds=3, cohort=2)
    assert row.ratio is None and row.share is None


def test_a_cohort_beyond_the_population_is_refused_before_anything_is_timed():
    with pytest.raises(ValueError, match=r"cohort <= 50 \(.* W2\)"):
        engine_suite.run(["W1", "W2"], FORMS, rounds=3, cohort=60)
