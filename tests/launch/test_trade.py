"""Song's trade: bits to an accuracy, with tuned steps and against gradient descent."""

import math

import numpy as np
import pytest

from fl_sketch.core import files
from fl_sketch.experiments import rounds_vs_bits
from fl_sketch.experiments.verify import known_problems
from tests.launching import launch


def count(steps=1, apart=0.0, accuracy=0.01):
    task = known_problems.quadratics(
        d=32, clients=3, condition=5.0, seed=0, apart=apart
    )
    return rounds_vs_bits.Count(task, steps, accuracy, range(3))


def rounds_of(rates, *, seeds=(0,), most=500, **problem):
    """Returns the rounds that rates take without a sketch, by rate and seed."""
    return rounds_vs_bits.Runs(count(**problem), "identity", 32)(rates, seeds, most)


@pytest.fixture(scope="module")
def rows():
    return list(rounds_vs_bits.measure(count(), [("srht", 4)]))


@pytest.mark.slow
def test_each_size_has_the_step_of_the_theorem_and_a_better_one(rows):
    assert [(row.operator, row.b, row.chosen) for row in rows] == [
        (name, b, chosen)
        for name, b in (("none", 32), ("srht", 4))
        for chosen in ("theorem", "tuned")
    ]
    for own, tuned in zip(rows[::2], rows[1::2], strict=True):
        assert tuned.rounds <= own.rounds and tuned.promised == own.promised
        alpha = 2 * 32 / own.b if own.operator == "srht" else 0
        assert own.step == 1 / (1 + alpha)
        for row in (own, tuned):
            assert row.bits == 32 * 3 * row.b * row.rounds < row.promised


@pytest.mark.slow
def test_at_the_theorems_step_it_is_the_step_that_costs_rounds_and_not_the_sketch(rows):
    """The tautology: without a sketch the same step needs nearly as many."""
    own, tuned = rows[2], rows[3]
    assert own.rounds < 1.25 * own.control
    assert tuned.rounds > 1.25 * tuned.control
    assert rows[0].control == rows[0].rounds  # gradient descent is its own control


@pytest.mark.slow
def test_clients_that_differ_hold_steps_down_where_they_take_several():
    several = {"steps": 4, "accuracy": 1e-4}
    long, short = rounds_of([0.5, 0.01], most=2000, **several)
    assert long < short < 2000
    long, short = rounds_of([0.5, 0.01], most=2000, apart=2.0, **several)
    assert long == math.inf and short < 2000
    # With one step a round they are gradient descent, whatever the minima.
    for apart in (0.0, 2.0):
        assert np.isfinite(rounds_of([0.5], apart=apart)).all()


@pytest.mark.slow
def test_rounds_are_those_after_which_the_error_stays_small():
    task, step = count().task, 0.3
    eigenvalues, axes = np.linalg.eigh(np.asarray(task.matrices).mean(0))
    start = (axes.T @ np.asarray(task.optimum)) ** 2 * eigenvalues / 2
    errors = [start @ (1 - step * eigenvalues) ** (2 * t) for t in range(100)]
    by_hand = np.argmax(np.array(errors) <= 0.01 * errors[0])
    assert rounds_of([step], seeds=(0, 1)).tolist() == [[by_hand, by_hand]]
    assert rounds_of([step], most=1).tolist() == [[by_hand]]  # calls are whole
    assert rounds_of([1e-4], most=1).tolist() == [[math.inf]]


@pytest.mark.parametrize(("best", "first"), [(0.1, 0.1), (7.0, 0.01), (1e-3, 5.0)])
def test_the_best_step_has_slower_ones_on_both_sides(best, first):
    tried = set()

    def race(steps):
        tried.update(steps)
        return [(math.log(step / best)) ** 2 for step in steps]

    found = rounds_vs_bits.best_step(race, first)
    assert abs(math.log2(found / best)) <= 1 / (2 * rounds_vs_bits.OCTAVE) + 1e-9
    assert min(tried) < found < max(tried)


@pytest.mark.parametrize("rounds", [lambda step: 1 / step, lambda step: math.inf])
def test_a_best_step_at_the_edge_is_refused(rounds):
    with pytest.raises(ValueError, match="0.1"):
        rounds_vs_bits.best_step(lambda steps: [*map(rounds, steps)], 0.1)


def test_one_step_is_promised_by_theorem_e_1_and_several_by_5_1():
    for apart in (0.0, 1.0):
        bound = count(1, apart).promised("srht", 4)
        assert bound.theorem.endswith("E.1") and bound.step == 1 / 17
        several = count(4, apart, 1e-4).promised("srht", 4)
        assert "Theorem 5.1" in several.theorem and several.constants.steps == 4
        assert (several.step == 1 / (8 * 17 * 4)) == (apart == 0)


@pytest.mark.slow
def test_the_command_measures_all_its_problems(tmp_path):
    out = tmp_path / "rows.csv"
    sizes = ("--parameters=16", "--clients=2", "--sizes=8", "--seeds=2")
    done = launch(
        "launch.trade", *sizes, "--steps=1", "--steps=2", "--apart=0.5",
        "--accuracy=0.05", f"--out={out}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = list(files.read_rows(out))
    assert len(rows) == 2 * 4 == len(done.stdout.splitlines()) - 1
    assert {row["local_steps"] for row in rows} == {"1", "2"}
    assert all(float(row["spread"]) > 0 for row in rows)
