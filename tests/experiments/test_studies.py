"""Each study, in small, has the fact that its page is about."""

import itertools

import jax.numpy as jnp
import pytest

from experiments import means, toy, tracking, trade


@pytest.mark.slow
def test_tracking_reaches_the_minimum_where_sketches_are_read_linearly():
    task = tracking.problem(d=32, clients=4)
    rates = (0.03, 1.0)
    rows = tracking.measure(task, rows=3, cols=8, rounds=600, server_rates=rates)
    left = {(r["algorithm"], r["query"], r["variates"]): r["of_fedavg"] for r in rows}
    assert left["FedAvg", "", ""] == 1 and left["SCAFFOLD", "", "its own"] < 0.1
    assert left["FedGATE", "", "1/(eta tau)"] < 0.1 > left["FedGATE", "", "1/tau"]
    assert left["FedSKETCHGATE privix", "mean", "1/tau"] < 0.1
    assert left["FedSKETCHGATE privix", "median", "1/tau"] > 1
    for query, channel in itertools.product(("median", "mean"), ("privix", "heaprix")):
        assert 0.5 < left[f"FedSKETCH {channel}", query, ""] < 2


@pytest.mark.slow
@pytest.mark.parametrize(("q", "wild"), [(18.0, False), (22.0, True)])
def test_variates_grow_at_a_client_too_curved_for_its_rate(q, wild):
    """Beyond eta q = 2 each round starts where the last blew up, but for FedAvg's."""
    curvature, optima = jnp.array([[q], [5.0]]), jnp.array([[1.0], [2.0]])
    task, options = toy.Quadratics(curvature, optima), {"rounds": 200, "steps": 2}
    rows = tracking.measure(task, rows=1, cols=1, server_rates=(0.2,), **options)
    for row in itertools.islice(rows, 4):  # without a sketch
        if row["algorithm"] == "FedAvg":
            assert row["distance"] < 3
        elif row["variates"] != "1/tau":
            assert row["distance"] > 1e3 if wild else row["distance"] < 1e-3


TASK = toy.quadratics(d=32, clients=3, condition=5.0, seed=0)


@pytest.mark.slow
def test_at_the_theorems_step_it_is_the_step_that_costs_rounds_and_not_the_sketch():
    options = {"accuracy": 0.01, "seeds": range(3)}
    plain, _, own, tuned = trade.measure(TASK, 1, [("srht", 4)], **options)
    assert plain["step"] == 1 and own["step"] == 1 / 17  # 1 + 2 d / b
    for row in (own, tuned):
        assert row["bits"] == 32 * 3 * 4 * row["rounds"] < row["promised"]
    assert own["rounds"] < 1.25 * own["control"]
    assert tuned["rounds"] < own["rounds"] and tuned["rounds"] > 1.25 * tuned["control"]


@pytest.mark.slow
def test_errors_of_integers_are_as_counted_and_fine_steps_as_good_as_floats():
    rows = list(means.measure(20, 4.0, [8, 18], numbers=60, releases=60))
    for row in rows:
        assert row["over_gaussian"] == pytest.approx(row["counted"], rel=0.15)
    assert rows[1]["counted"] < 1  # the pld accountant's
    coarse, fine = rows[2:]
    assert 1 <= fine["counted"] < 1.02 < coarse["counted"]
