"""Each study, in small, has the fact that its page is about."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import das_quadratics, heavy_tails, means, toy, tracking, trade


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


def test_noise_is_students_t():
    noise = np.asarray(heavy_tails.students_t(jax.random.key(0), 5.0, (20000, 8)))
    # The variance of Student's t is tail / (tail - 2), and a median of |t| is 0.7267.
    assert abs(noise.var() - 5 / 3) < 0.1
    assert abs(np.median(np.abs(noise)) - 0.7267) < 0.01
    lengths = np.square(noise).sum(1)  # the numbers of a step have one length
    assert np.corrcoef(np.square(noise[:, 0]), lengths - noise[:, 0] ** 2)[0, 1] > 0.2


@pytest.mark.slow
def test_plain_steps_need_clipping_without_variance():
    rows = list(heavy_tails.measure(d=20, tail=1.2, rounds=60, numbers=10, runs=16))
    high = {
        (row["server"], row["numbers"], row["clipped"]): row["high"] for row in rows
    }
    assert len(high) == len(rows) == 8
    for numbers in (20, 10):
        assert high["sgd", numbers, "yes"] < high["sgd", numbers, "no"] / 1.5


@pytest.mark.slow
def test_without_noise_and_clipping_das_paths_are_those_of_full_gradient_steps():
    tasks = [das_quadratics.problem(0, clients=4, d=6, rank=3)]
    (task, offset), options = tasks[0], {"thresholds": (1e6,), "rates": (0.05,)}
    (row, paths), _ = das_quadratics.measure(tasks, 0.0, rounds=3, steps=2, **options)
    excess, _, models = (part[0] for part in paths["clip"])
    roots, optima = np.asarray(task.roots), np.asarray(task.optima)
    hessians = np.einsum("cdr,cer->cde", roots, roots)
    slopes = np.einsum("cde,ce->cd", hessians, np.asarray(task.optimum) - optima)
    np.testing.assert_allclose(slopes.mean(0), 0, atol=1e-5)
    w, best = np.asarray(task.optimum + offset), das_quadratics.mean_loss
    for k in range(4):
        np.testing.assert_allclose(models[k], w - task.optimum, atol=1e-5)
        gap = float(best(task, jnp.asarray(w)) - best(task, task.optimum))
        assert excess[k] == pytest.approx(gap, rel=1e-3)
        local = np.tile(w, (4, 1))
        for _ in range(2):
            local -= 0.05 * np.einsum("cde,ce->cd", hessians, local - optima)
        w = local.mean(0)
    assert row["clip_excess"] == pytest.approx(excess[-1])


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
def test_rounds_are_those_after_which_the_error_stays_small():
    step, target = 0.3, 0.01 * TASK.known["f0"]
    eigenvalues, axes = np.linalg.eigh(np.asarray(TASK.matrices).mean(0))
    start = (axes.T @ np.asarray(TASK.optimum)) ** 2 * eigenvalues / 2
    errors = [start @ (1 - step * eigenvalues) ** (2 * t) for t in range(100)]
    by_hand = np.argmax(np.array(errors) <= 0.01 * errors[0])
    runs = trade.runs_of(TASK, 1, target, "identity", 32)
    assert runs([step], (0, 1), 500).tolist() == [[by_hand, by_hand]]
    assert runs([1e-4], (0,), 1).tolist() == [[math.inf]]


def test_the_best_step_has_slower_ones_on_both_sides():
    for best, first in ((0.1, 0.1), (7.0, 0.01), (1e-3, 5.0)):
        found = trade.best_step(
            lambda s, b=best: [math.log(x / b) ** 2 for x in s], first
        )
        assert abs(math.log2(found / best)) <= 1 / (2 * trade.OCTAVE) + 1e-9
    with pytest.raises(ValueError, match="0.1"):
        trade.best_step(lambda steps: [1 / step for step in steps], 0.1)


@pytest.mark.slow
def test_errors_of_integers_are_as_counted_and_fine_steps_as_good_as_floats():
    rows = list(means.measure(20, 4.0, [8, 18], numbers=60, releases=60))
    for row in rows:
        assert row["over_gaussian"] == pytest.approx(row["counted"], rel=0.15)
    assert rows[1]["counted"] < 1  # the pld accountant's
    for coarse, fine in (rows[2:4], rows[4:6]):
        assert 1 <= fine["counted"] < 1.02 < coarse["counted"]
