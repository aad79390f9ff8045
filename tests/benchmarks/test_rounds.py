"""The rounds that are timed do the same work, and sketches have their rows."""

import numpy as np
import pytest

from benchmarks import jax_rounds, peers
from benchmarks.rounds import WORKLOADS, drawn_plan

W3 = WORKLOADS["W3"]


def test_rows_of_a_round_belong_to_different_clients():
    for name, work in WORKLOADS.items():
        plan = drawn_plan(work, 3)
        batches = 1 if work.full_batch else work.steps
        assert plan.shape == (work.cohort, batches, work.batch), name
        owners = plan // work.examples
        assert (owners == owners[:, :1, :1]).all()
        assert len({*owners[:, 0, 0].tolist()}) == work.cohort
        assert (plan != drawn_plan(work, 4)).any()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "chunk"), [("W2", 2), ("W3", 1), ("W3", 2)])
def test_the_round_by_hand_and_the_engines_make_the_same_model(name, chunk):
    # Five clients are no multiple of the places: there the last ones weigh nothing.
    work = WORKLOADS[name]._replace(cohort=5, population=9, examples=40)
    weights, ends = jax_rounds.initial_weights(work), []
    for form in ("plain", "engine"):
        player = jax_rounds.player(work, weights, form, devices=2, chunk=chunk)
        player.play(player.place(drawn_plan(work, 0)))
        ends.append(player.weights())
    for path, first in weights.items():
        np.testing.assert_allclose(ends[1][path], ends[0][path], rtol=1e-5, atol=1e-5)
        assert abs(ends[0][path] - first).max() > 1e-4


@pytest.mark.slow
def test_peers_are_timed_in_turn_and_one_that_cannot_start_is_left_out(capfd):
    names = ["engine", "heaprix", "pfl"]
    options = {"rounds": 3, "python": "/bin/false"}
    found = list(peers.rows("W3", W3._replace(cohort=2), names, **options))
    assert [row["peer"] for row in found] == names[:2]
    assert [row["model"] for row in found] == ["same", "other"]
    assert all(row["seconds"] > 0 and row["moved"] > 1e-4 for row in found)
    assert found[0]["ratio"] == 1
    assert "pfl is left out" in capfd.readouterr().err
