"""Das et al.'s bounds: by hand, and the rounds to a target."""

import math

import pytest

from fl_sketch.theory import das

LETTERS = {"rho": 0.1, "L": 2.0, "E": 5, "C": 20.0, "Delta": 0.5, "r2": 8.0}
THEOREMS = {"2": das.theorem_2, "3": das.theorem_3, "4": das.theorem_4}
FREE = {
    "rho": 0.05, "L": 2.0, "lambda_": 1.0, "G": 3.0, "E": 5, "Delta": 0.1, "r2": 8.0,
}  # fmt: skip


def test_the_values_of_a_hand_calculation():
    # A: 20 / 5 (2 8 / 4 + 4 / 2) rho; B: 3 5 0.5 / (2 3) rho.
    clipped = das.theorem_2(3, 4, **LETTERS)
    assert clipped == pytest.approx(0.1 * (4 * (4 + 2) + 15 * 0.5 / 6))
    assert das.theorem_3(3, 4, **LETTERS) == 4 / 5 * clipped
    # B_2 without its last term: (20 / 5)^2 / (2 3 2) 5 rho.
    normalised = das.theorem_4(3, 4, **LETTERS)
    assert normalised == pytest.approx(0.1 * (4 * (4 + 2) + 16 / 12 * 5))
    with pytest.raises(ValueError, match="C >= 20"):
        das.theorem_2(3, 4, **LETTERS | {"C": 19.0})


@pytest.mark.parametrize("name", THEOREMS)
@pytest.mark.parametrize("Delta", [0.0, 0.2])
@pytest.mark.parametrize("target", [0.09, 0.5])
def test_rounds_to_a_target_are_enough_and_no_more(name, Delta, target):
    theorem, part = THEOREMS[name], 4 / 5 if name == "3" else 1
    known = {"L": 1.0, "r2": 4.0, "rho": 0.01, "C": 10.0}
    letters, target = LETTERS | known | {"Delta": Delta}, part * target
    alpha, T = das.rounds_for(target, theorem, **letters)
    assert alpha >= 1 and alpha / (2 * 0.01) >= 5
    assert pytest.approx(2 * alpha * 2 / (10 * 0.01**2), rel=1e-12) == T
    bound = theorem(alpha, 2.0, **letters)
    assert bound <= target * (1 + 1e-9)
    if alpha > 1.01:  # the fewest rounds
        assert bound == pytest.approx(target, rel=1e-4)
    with pytest.raises(ValueError, match="Noise alone"):
        das.rounds_for(part * 0.08, theorem, **letters)


def test_proposition_1_at_the_values_of_a_hand_calculation():
    C, T, bound = das.proposition_1(**FREE)
    assert pytest.approx(3 * 5 * (1 - 11 * 4 * 0.05 / 64 / 4)) == C
    assert math.ceil(2 * 2 * math.sqrt(8) / (C * 0.05**2)) == T
    # 4/5 (C/E (L |w0 - w*|^2 / gamma + gamma / L) + 3 E Delta / 2) rho
    gamma = T * C * 0.05**2 / 2
    by_hand = 0.8 * 0.05 * (C / 5 * (2 * 8 / gamma + gamma / 2) + 7.5 * 0.1)
    assert bound == pytest.approx(by_hand, rel=1e-12)
    # One local step has the longest gradient as its threshold.
    assert das.proposition_1(**FREE | {"E": 1})[0] == 3


def test_a_threshold_of_proposition_1_clips_nothing():
    """The sums of gradients on x^2 / 2 from where its gradient is G."""
    letters = {"rho": 0.1, "L": 1.0, "lambda_": 1.0, "G": 2.0, "E": 5, "r2": 4.0}
    C, eta = das.proposition_1(Delta=0.0, **letters)[0], 0.1 / 2
    sums = [2 * (1 - (1 - eta) ** e) / eta for e in (5, 6)]
    assert sums[0] <= C < sums[1]
