"""Das et al.'s numbers: by hand, enough by the bounds, and refused elsewhere."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from fl_sketch import theory
from fl_sketch.theory import Constants
from tests.refusals import refused

DAS = Constants(
    smoothness=2.0, distance=8.0, gap=0.5, rho=0.1, steps=5, threshold=20.0, clients=3,
    d=7,
)  # fmt: skip
THEOREMS = {  # and the part of `error` that they bound
    "2": (theory.clipped, theory.clipped_error, 1),
    "3": (theory.clipped_minimum, theory.clipped_error, 4 / 5),
    "4": (theory.normalised, theory.normalised_error, 1),
}


def test_the_values_of_a_hand_calculation():
    # A: 20 / 5 (2 8 / 4 + 4 / 2) rho; B: 3 5 0.5 / (2 3) rho.
    error = theory.clipped_error(DAS, alpha=3, gamma=4)
    assert error == pytest.approx(0.1 * (4 * (4 + 2) + 15 * 0.5 / 6))
    # B_2 without its last term: (20 / 5)^2 / (2 3 2) 5 rho.
    error = theory.normalised_error(DAS, alpha=3, gamma=4)
    assert error == pytest.approx(0.1 * (4 * (4 + 2) + 16 / 12 * 5))


@pytest.mark.parametrize("name", THEOREMS)
@pytest.mark.parametrize("gap", [0.0, 0.2])
@pytest.mark.parametrize("target", [0.09, 0.5])
def test_promised_rounds_are_enough_by_the_bound(name, gap, target):
    promise, error_of, part = THEOREMS[name]
    known = {"smoothness": 1.0, "distance": 4.0, "rho": 0.01, "threshold": 10.0}
    constants, target = replace(DAS, gap=gap, **known), part * target
    bound = promise(constants, target)
    alpha = 0.01 / (2 * bound.step)
    assert alpha >= 1 and alpha / (2 * 0.01) >= 5
    assert bound.rounds == pytest.approx(2 * alpha * 2 / (10 * 0.01**2), rel=1e-12)
    assert bound.error <= target * (1 + 1e-9)
    if alpha > 1.01:  # the fewest rounds
        assert bound.error == pytest.approx(target, rel=1e-4)
    error = part * error_of(constants, alpha=alpha, gamma=2.0)
    assert bound.error == pytest.approx(error, rel=1e-12)
    assert bound.bits == 32 * 3 * 7 * bound.rounds
    least = f"target > {part * 0.08:g}.*Theorem {name}.*got target={part * 0.08:g}"
    with pytest.raises(theory.Unreachable, match=least):
        promise(constants, part * 0.08)


@pytest.mark.parametrize("name", THEOREMS)
def test_the_error_is_that_of_whole_rounds(name):
    """The recursion (47) at the rounds and the step of the bound, and one round."""
    promise, _, part = THEOREMS[name]
    known = {"smoothness": 1.0, "distance": 1.0, "steps": 1, "threshold": 100.0}
    constants = replace(DAS, rho=0.5, gap=0.1, **known)
    bound = promise(constants, part * 103.0)
    step, rounds, share = bound.step, bound.rounds, 2 * bound.step
    added = share * (1 + share) * 0.1 if name != "4" else step * 100**2
    recursion = 1 / (step * rounds) + step * rounds * 100**2 * 0.5**2 + added
    assert rounds > 1 if name == "4" else rounds == 1
    assert part * recursion <= bound.error * (1 + 1e-9) <= part * 103


@pytest.mark.parametrize("name", THEOREMS)
def test_twice_the_rounds_halve_what_is_above_the_noise(name):
    promise, _, part = THEOREMS[name]
    constants, noise = replace(DAS, rho=0.01), part * 0.01 * 4 * 2 * math.sqrt(8)
    first = promise(constants, noise + 4e-3)
    second = promise(constants, noise + 2e-3)
    assert second.rounds == pytest.approx(2 * first.rounds, rel=1e-3)
    assert second.step == pytest.approx(first.step / 2, rel=1e-3)


UNCLIPPED = replace(
    DAS, rho=0.05, threshold=math.nan, gradient=3.0, convexity=1.0, gap=0.1
)


def test_proposition_1_at_the_values_of_a_hand_calculation():
    bound = theory.unclipped(UNCLIPPED)
    threshold = 3 * 5 * (1 - 11 * 4 * 0.05 / 64 / 4)
    assert bound.constants.threshold == pytest.approx(threshold)
    assert bound.step == 0.05 / 4
    assert bound.rounds == math.ceil(2 * 2 * math.sqrt(8) / (threshold * 0.05**2))
    # 4/5 (C/E (L |w0 - w*|^2 / gamma + gamma / L) + 3 E Delta / 2) rho
    gamma = bound.rounds * threshold * 0.05**2 / 2
    error = 0.8 * 0.05 * (threshold / 5 * (2 * 8 / gamma + gamma / 2) + 7.5 * 0.1)
    assert bound.error == pytest.approx(error, rel=1e-12)
    least = 0.8 * 0.05 * (2 * threshold / 5 * math.sqrt(8) + 7.5 * 0.1)
    assert least < bound.error < 1.001 * least
    # One local step has the longest gradient as its threshold.
    assert theory.unclipped(replace(UNCLIPPED, steps=1)).constants.threshold == 3


@pytest.mark.parametrize("steps", [1, 2, 5, 10])
def test_equation_11_is_no_less_than_the_bound(steps):
    constants = replace(UNCLIPPED, steps=steps)
    share = 11 * 3 * math.sqrt(8) * 0.05 / 48 / 4
    printed = 0.05 * (6 * math.sqrt(8) + 6 * steps / 5 * (0.1 - share))
    assert theory.unclipped(constants).error <= printed


def test_a_threshold_of_proposition_1_clips_nothing():
    """The sums of gradients on x^2 / 2 from where its gradient is G."""
    rho, steps = 0.1, 5
    constants = Constants(
        smoothness=1.0, convexity=1.0, gradient=2.0, rho=rho, steps=steps, gap=0.0,
        distance=4.0,
    )  # fmt: skip
    bound = theory.unclipped(constants)
    sums = [2 * (1 - (1 - bound.step) ** e) / bound.step for e in (steps, steps + 1)]
    assert sums[0] <= bound.constants.threshold < sums[1]


def test_equation_23_fails_for_poisson_cohorts_which_the_theorems_leave_out():
    """Four equal updates of length 1, each there with a chance of a half: r = 2."""
    there = np.array([*itertools.product([0, 1], repeat=4)])
    square = np.mean((there.sum(1) / 2) ** 2)
    assert square == 1 + 1 / 2 - 1 / 4
    for bound in (theory.clipped(DAS, 99.0), theory.unclipped(UNCLIPPED)):
        assert any("Poisson" in one.text for one in bound.assumptions)


def clipping(alpha, **changes):
    return theory.clipped_error(replace(DAS, **changes), alpha=alpha, gamma=4)


def unclipped(**changes):
    return theory.unclipped(replace(UNCLIPPED, **changes))


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda: clipping(0.9), "alpha >= 1 .*got alpha=0.9"),
        (lambda: clipping(1.0, rho=0.2), "alpha >= 2 .*got alpha=1"),
        (lambda: clipping(2.0, threshold=19.0), "threshold >= 20 .*got threshold=19"),
        (lambda: clipping(2.0, gap=math.nan), "gap >= 0 .*got gap=nan"),
        (lambda: theory.clipped(replace(DAS, threshold=19.0), 99), "threshold >= 20"),
        (
            lambda: theory.normalised(replace(DAS, threshold=19.0), 99),
            "threshold >= 20 .*Theorem 4",
        ),
        (
            lambda: theory.clipped_minimum(replace(DAS, rho=math.nan), 99),
            "rho > 0 .*Theorem 3.*got rho=nan",
        ),
        (lambda: unclipped(rho=0.11), "rho <= 0.1 .*Proposition 1.*got rho=0.11"),
        (lambda: unclipped(convexity=2.1), "convexity <= 2 .*got convexity=2.1"),
        (lambda: unclipped(gap=99.0), "threshold >= .*Proposition 1"),
        (lambda: unclipped(gradient=math.nan), "gradient > 0 .*got gradient=nan"),
    ],
)
def test_what_a_theorem_does_not_speak_of_is_refused_in_a_line(call, found):
    with refused(match=found):
        call()
