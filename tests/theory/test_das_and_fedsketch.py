"""Das et al.'s and Haddadpour et al.'s numbers: as printed, and consistent."""

import math
from dataclasses import replace

import pytest

from fl_sketch import theory
from fl_sketch.theory import Constants
from tests.refusals import refused

CONSTANTS = Constants(smoothness=2.0, convexity=0.2, clients=4, d=1000, server_rate=4.0)
OMEGA = math.e * 10


def fedsketch(objective="pl", variant="privix", cols=100, tracking=False, **changes):
    kind = {"objective": objective, "variant": variant, "tracking": tracking}
    return theory.fedsketch(replace(CONSTANTS, **changes), 0.1, cols=cols, **kind)


@pytest.mark.parametrize(
    ("objective", "variant", "tracking", "rounds", "local"),
    [
        ("nonconvex", "privix", False, 10, (OMEGA + 1) / 0.4),
        ("nonconvex", "heaprix", False, 10, OMEGA / 0.4),
        ("pl", "privix", False, (OMEGA / 4 + 1) * 10 * math.log(10),
         (OMEGA + 1) / (4 * (OMEGA / 4 + 1) * 0.1)),
        ("convex", "heaprix", False, 20 * ((OMEGA - 1) / 4 + 1) * math.log(10),
         OMEGA**2 / (4 * ((OMEGA - 1) / 4 + 1) ** 2 * 0.01)),
        ("nonconvex", "privix", True, (OMEGA + 1) / 0.1, 2.5),
        ("nonconvex", "heaprix", True, OMEGA / 0.1, 2.5),
        ("pl", "heaprix", True, OMEGA * 10 * math.log(10), 2.5),
        ("convex", "privix", True, 20 * (OMEGA + 1) * math.log(10), 25),
    ],
)  # fmt: skip
def test_theorems_2_and_3_are_as_printed(objective, variant, tracking, rounds, local):
    bound = fedsketch(objective, variant, tracking=tracking)
    steps = bound.constants.steps
    assert bound.rounds == math.ceil(rounds - 1e-9)
    assert steps == math.ceil(local - 1e-9)
    omega = OMEGA - (variant == "heaprix")
    grown = omega + 1 if tracking else omega / 4 + 1
    if objective == "nonconvex":
        printed = math.sqrt(4 / (bound.rounds * steps * grown)) / 8
    else:
        printed = 1 / (2 * 2 * grown * steps * 4)
    assert bound.step == pytest.approx(printed, rel=1e-12)
    numbers = math.ceil(100 * math.log(1000 * bound.rounds / 1e-3))
    assert bound.bits == 32 * 4 * numbers * bound.rounds
    assert bound.error == 0.1


def test_the_logarithm_of_a_large_target_is_one():
    kind = {"objective": "pl", "variant": "privix", "cols": 100}
    bound = theory.fedsketch(CONSTANTS, 0.9, **kind)
    assert bound.rounds == math.ceil((OMEGA / 4 + 1) * 10)


DAS = Constants(
    smoothness=2.0, distance=8.0, gap=0.5, rho=0.1, steps=5, threshold=20.0, clients=3,
    d=7,
)  # fmt: skip


def test_clipping_at_the_values_of_a_hand_calculation():
    # A: 20 / 5 (2 8 / 4 + 4 / 2) rho; B: 3 5 0.5 / (2 3) rho.
    error = theory.clipped_error(DAS, alpha=3, gamma=4)
    assert error == pytest.approx(0.1 * (4 * (4 + 2) + 15 * 0.5 / 6))


@pytest.mark.parametrize("gap", [0.0, 0.2])
@pytest.mark.parametrize("target", [0.09, 0.5])
def test_rounds_of_das_theorem_2_are_enough_by_its_bound(gap, target):
    known = {"smoothness": 1.0, "distance": 4.0, "rho": 0.01, "threshold": 10.0}
    constants = replace(DAS, gap=gap, **known)
    bound = theory.clipped(constants, target)
    alpha = 0.01 / (2 * bound.step)
    assert alpha >= 1 and alpha / (2 * 0.01) >= 5
    assert 0 <= bound.rounds - 2 * alpha * 2 / (10 * 0.01**2) <= 1 + 1e-6
    assert bound.error <= target * (1 + 1e-9)
    if alpha > 1.01:  # the smallest
        assert bound.error == pytest.approx(target)
    error = theory.clipped_error(constants, alpha=alpha, gamma=2.0)
    assert bound.error == pytest.approx(error, rel=1e-12)
    assert bound.bits == 32 * 3 * 7 * bound.rounds
    with pytest.raises(theory.Unreachable, match="target > 0.08.*got target=0.08"):
        theory.clipped(constants, 0.08)


def clipping(alpha, **changes):
    return theory.clipped_error(replace(DAS, **changes), alpha=alpha, gamma=4)


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda: fedsketch("pi"), "objective='pi'"),
        (lambda: fedsketch(variant="prvix"), "variant='prvix'.*mean 'privix'"),
        (lambda: fedsketch(server_rate=3.0), "server_rate >= 4 .*got server_rate=3"),
        (lambda: fedsketch(cols=1001), "cols <= 1000 .*got cols=1001"),
        (
            lambda: fedsketch(tracking=True, convexity=2.1),
            "convexity <= 2 .*Theorem 3.*got convexity=2.1",
        ),
        (lambda: fedsketch(convexity=math.nan), "convexity > 0 .*got convexity=nan"),
        (lambda: clipping(0.9), "alpha >= 1 .*got alpha=0.9"),
        (lambda: clipping(1.0, rho=0.2), "alpha >= 2 .*got alpha=1"),
        (lambda: clipping(2.0, threshold=19.0), "threshold >= 20 .*got threshold=19"),
        (lambda: clipping(2.0, gap=math.nan), "gap >= 0 .*got gap=nan"),
        (lambda: theory.clipped(replace(DAS, threshold=19.0), 99), "threshold >= 20"),
    ],
)
def test_what_a_theorem_does_not_speak_of_is_refused_in_a_line(call, found):
    with refused(match=found):
        call()
