"""Haddadpour et al.'s numbers: by hand, within the condition, and consistent."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fl_sketch import theory
from fl_sketch.theory import Constants
from tests.refusals import refused

CONSTANTS = Constants(
    smoothness=2.0, convexity=0.2, start=3.0, distance=5.0, noise=0.5, clients=4,
    steps=10, d=1000, server_rate=4.0, alpha=9.0,
)  # fmt: skip
OMEGA = math.e * 10
THEOREMS = {
    "5": theory.fedsketch_nonconvex,
    "6": theory.fedsketch_pl,
    "7": theory.fedsketch_convex,
    "Corollary 5": theory.fedavg_nonconvex,
}


def crossed(x):
    return 1 + 4 / 3 * x * math.exp(x)


X = 1e-3 * 2 * 10  # eta L tau
LINEAR = 2 * 1e-3 * 4 * 10 * crossed(X) / 4 * 0.25  # L eta gamma (omega + 1) sigma^2/k
SQUARE = 4 * 1e-6 * 10 * 0.25  # L^2 eta^2 tau sigma^2
PHI = 1 / math.sqrt(40)
STEP_7 = 1 / (2 * (2 + PHI) * 4 * 10 * 10)
NOISE_7 = (crossed(1 / 80) / 80 + 1 / (4 * 40**2 * 10)) * 0.25


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("5", 2 * 3 / (1e-3 * 4 * 10 * 100) + LINEAR + SQUARE),
        ("6", (1 - 1e-3 * 4 * 0.2 * 10) ** 100 * 3 + (LINEAR + SQUARE) / (2 * 0.2)),
        (
            "7",
            (1 - PHI / (2 * (2 + PHI) * 10)) ** 100 * 3
            + NOISE_7 / (2 * PHI)
            + PHI / 2 * 5,
        ),
        (
            "Corollary 5",
            2 * 3 / (1e-3 * 10 * 100) + 2e-3 * crossed(X) / 4 * 0.25 + SQUARE,
        ),
    ],
)
def test_the_values_of_a_hand_calculation(name, value):
    bound = THEOREMS[name](replace(CONSTANTS, step=1e-3, rounds=100))
    assert bound.error == pytest.approx(value, rel=1e-12)
    if name == "7":
        assert bound.step == pytest.approx(STEP_7, rel=1e-12)
        assert bound.constants.penalty == PHI
        assert bound.constants.smoothness == 2


@pytest.mark.parametrize("noise", [0.0, 0.5, 20.0])
@pytest.mark.parametrize("steps", [1, 10])
@pytest.mark.parametrize("target", [1.0, 0.1])
@pytest.mark.parametrize("name", THEOREMS)
def test_promised_rounds_are_enough_within_condition_16(name, noise, steps, target):
    constants = replace(CONSTANTS, noise=noise, steps=steps)
    bound = THEOREMS[name](constants, target)
    c = bound.constants
    assert bound.error <= target * (1 + 1e-9)
    smooth = 2 + (c.penalty if name == "7" else 0)
    x = bound.step * smooth * c.steps
    assert x**2 + (1 + c.alpha) * c.server_rate * x <= 1 + 1e-9
    if name != "7":  # which has a step of its own
        fewer = THEOREMS[name](replace(c, rounds=bound.rounds - 1))
        assert fewer.error > target
        if noise == 0:  # the longest step
            assert x**2 + (1 + c.alpha) * c.server_rate * x == pytest.approx(1)
    assert THEOREMS[name](c).error == bound.error


def test_without_noise_twice_the_rounds_halve_theorem_5_and_square_theorem_6():
    constants = replace(CONSTANTS, noise=0.0, start=1.0, step=1e-3, rounds=100)
    longer = replace(constants, rounds=200)
    for name, expected in (("5", lambda x: x / 2), ("6", lambda x: x**2)):
        first, second = THEOREMS[name](constants), THEOREMS[name](longer)
        assert second.error == pytest.approx(expected(first.error))


def test_rounds_of_theorem_5_grow_with_omega_and_fall_with_nothing_else():
    """Theorem 2 prints O(1 / target), whatever omega is."""
    few = theory.fedsketch_nonconvex(replace(CONSTANTS, noise=0.0), 0.1)
    many = theory.fedsketch_nonconvex(replace(CONSTANTS, noise=0.0, alpha=99.0), 0.1)
    assert many.rounds == pytest.approx(10 * few.rounds, rel=1e-2)


def test_local_steps_of_theorem_7_grow_with_the_square_of_accuracy():
    steps = [theory.fedsketch_convex(CONSTANTS, t).constants.steps for t in (0.4, 0.2)]
    assert steps[1] == pytest.approx(4 * steps[0], rel=0.05)


def test_one_sketch_for_all_clients_is_why_omega_is_not_divided_by_their_number():
    """One row of a count sketch, 64 clients that agree, and a Hessian of one.

    With omega / k + 1, condition (16) admits a step with which the gradient grows.
    """
    d, cols, clients, rounds = 64, 8, 64, 12
    read, random = math.e * d / cols, np.random.default_rng(0)

    def measured(step):
        squares = np.zeros(rounds)
        for _ in range(100):
            w = np.ones(d) / 8
            for number in range(rounds):
                squares[number] += w @ w / 100
                places, signs = random.integers(cols, size=d), random.choice([-1, 1], d)
                message = np.bincount(places, signs * w, cols)
                w = w - step * clients * signs * message[places]
        return squares.mean()

    def longest(grown):
        pull = grown * clients
        return 2 / (pull + math.sqrt(pull**2 + 4))

    def first_term(step):
        return 2 * 0.5 / (step * clients * rounds)

    printed = longest(read / clients + 1)
    assert measured(printed) > 10 * first_term(printed)
    constants = Constants(
        smoothness=1.0, start=0.5, clients=clients, noise=0.0, alpha=read,
        step=longest(read + 1), rounds=rounds, server_rate=float(clients),
    )  # fmt: skip
    bound = theory.fedsketch_nonconvex(constants)
    assert bound.error == pytest.approx(first_term(bound.step))
    assert measured(bound.step) < bound.error


def fedsketch(objective="pl", variant="privix", cols=100, **changes):
    kind = {"objective": objective, "variant": variant}
    return theory.fedsketch(replace(CONSTANTS, **changes), 0.1, cols=cols, **kind)


@pytest.mark.parametrize(
    ("objective", "name"), [("nonconvex", "5"), ("pl", "6"), ("convex", "7")]
)
@pytest.mark.parametrize("variant", ["privix", "heaprix"])
def test_fedsketch_is_these_theorems_for_its_own_omega(objective, name, variant):
    bound, heavy = fedsketch(objective, variant), variant == "heaprix"
    omega = OMEGA - heavy
    plain = THEOREMS[name](replace(CONSTANTS, alpha=omega), 0.1)
    assert f"Theorem {name}" in bound.theorem and variant in bound.theorem
    assert bound.step == pytest.approx(plain.step, rel=1e-9)
    assert bound.error == pytest.approx(plain.error, rel=1e-9)
    assert bound.rounds == plain.rounds
    assert bound.bits == 32 * 4 * numbers_of(variant, bound.rounds) * bound.rounds
    assert any("values=" in one.text for one in bound.assumptions) == heavy


def numbers_of(variant, rounds):
    """Of all messages: HEAPRIX sends a second sketch, and a value for each column."""
    numbers = math.ceil(100 * math.log(1000 * rounds / 1e-3))
    return numbers if variant == "privix" else 2 * numbers + 100


@pytest.mark.parametrize("rate", [1e7, 1e8, 1e12])
def test_a_step_that_ends_a_quadratic_in_one_round_takes_one_round(rate):
    known = {"convexity": 2.0, "alpha": 0.0, "noise": 0.0, "server_rate": rate}
    bound = theory.fedsketch_pl(replace(CONSTANTS, **known), 0.1)
    assert bound.rounds == 1 and 0 <= bound.error < 1e-6


def test_rounds_of_theorem_5_at_given_local_steps_are_of_second_order():
    """And of first order if local steps grow as 1 / (k target)."""
    noisy = replace(CONSTANTS, noise=1.0)
    given, grown = (
        [
            theory.fedsketch_nonconvex(replace(noisy, steps=steps), target).rounds
            for target, steps in ((1e-3, 4), (1e-4, later))
        ]
        for later in (4, 40)
    )
    assert given[1] == pytest.approx(100 * given[0], rel=0.05)
    assert grown[1] == pytest.approx(10 * grown[0], rel=0.05)


def test_theorem_6_without_a_sketch_assumes_none():
    sketched, plain = (
        {one.about for one in bound.assumptions}
        for alpha in (3.0, 0.0)
        for bound in [theory.fedsketch_pl(replace(CONSTANTS, alpha=alpha), 0.1)]
    )
    assert plain < sketched and sketched - plain == {"shared_sketch"}


def test_corollary_5_counts_whole_models():
    bound = theory.fedavg_nonconvex(replace(CONSTANTS, b=100), 0.1)
    assert bound.bits == 32 * 4 * 1000 * bound.rounds


def gate(objective="pl", variant="privix", cols=100, target=0.1, **changes):
    kind = {"objective": objective, "variant": variant, "cols": cols}
    return theory.fedsketchgate(replace(CONSTANTS, **changes), target, **kind)


@pytest.mark.parametrize(
    ("objective", "variant", "rounds", "local"),
    [
        ("nonconvex", "privix", (OMEGA + 1) / 0.1, 2.5),
        ("nonconvex", "heaprix", OMEGA / 0.1, 2.5),
        ("pl", "heaprix", OMEGA * 10 * math.log(10), 2.5),
        ("convex", "privix", 20 * (OMEGA + 1) * math.log(10), 25),
    ],
)
def test_theorem_3_is_as_printed(objective, variant, rounds, local):
    bound, heavy = gate(objective, variant, server_rate=10.0), variant == "heaprix"
    steps, grown = bound.constants.steps, OMEGA + 1 - heavy
    assert bound.rounds == math.ceil(rounds - 1e-9)
    assert steps == math.ceil(local - 1e-9)
    if objective == "nonconvex":
        printed = math.sqrt(4 / (bound.rounds * steps * grown)) / 20
    else:
        printed = 1 / (2 * 2 * grown * steps * 10)
    assert bound.step == pytest.approx(printed, rel=1e-12)
    assert bound.bits == 32 * 4 * numbers_of(variant, bound.rounds) * bound.rounds
    assert any("values=" in one.text for one in bound.assumptions) == heavy
    assert bound.error == 0.1


def test_the_logarithm_of_a_large_target_is_one():
    assert gate(target=0.9).rounds == math.ceil((OMEGA + 1) * 10)


def at(name, **changes):
    return THEOREMS[name](replace(CONSTANTS, step=1e-3, rounds=9, **changes))


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda: fedsketch("pi"), "objective='pi'"),
        (lambda: fedsketch(variant="prvix"), "variant='prvix'.*mean 'privix'"),
        (lambda: fedsketch(cols=1001), "cols <= 1000 .*got cols=1001"),
        (lambda: fedsketch(convexity=math.nan), "convexity > 0 .*got convexity=nan"),
        (lambda: at("5", noise=math.nan), "noise >= 0 .*got noise=nan"),
        (lambda: at("6", convexity=2.1), "convexity <= 2 .*Theorem 6.*got convexity"),
        (lambda: at("5", alpha=99.0), "step <= 0.000124.*Theorem 5.*got step=0.001"),
        (lambda: at("Corollary 5", steps=400), "step <= 0.00077.*Corollary 5"),
        (
            lambda: theory.fedsketch_convex(CONSTANTS),
            "rounds >= 1 .*Theorem 7.*got rounds=0",
        ),
        (lambda: gate("pi"), "objective='pi'"),
        (lambda: gate(server_rate=3.0), "server_rate >= 4 .*got server_rate=3"),
        # Theorem 9: sqrt(p tau), for 4 clients and 9 local steps
        (lambda: gate(target=0.03), "server_rate >= 6 .*got server_rate=4"),
        (lambda: gate("convex"), "server_rate >= 10 .*got server_rate=4"),
        (lambda: gate(cols=1001), "cols <= 1000 .*got cols=1001"),
        (lambda: gate(convexity=2.1), "convexity <= 2 .*Theorem 3.*got convexity=2.1"),
    ],
)
def test_what_a_theorem_does_not_speak_of_is_refused_in_a_line(call, found):
    with refused(match=found):
        call()
