"""Haddadpour et al.'s bounds: by hand, within the condition, and to a target."""

import math

import pytest

from fl_sketch.theory import fedsketch

NUMBERS = {
    "L": 2.0, "k": 4, "tau": 10, "sigma": 0.5, "gamma": 4.0, "omega": 9.0, "f0": 3.0,
}  # fmt: skip
X = 1e-3 * 2 * 10  # eta L tau
OMEGA = math.e * 10


def crossed(x):
    return 1 + 4 / 3 * x * math.exp(x)


def test_the_values_of_a_hand_calculation():
    # L eta gamma (omega + 1) sigma^2 / k, and L^2 eta^2 tau sigma^2
    noise = 2 * 1e-3 * 4 * 10 * crossed(X) / 4 * 0.25 + 4 * 1e-6 * 10 * 0.25
    bound = fedsketch.theorem_5(1e-3, 100, **NUMBERS)
    assert bound == pytest.approx(2 * 3 / (1e-3 * 4 * 10 * 100) + noise, rel=1e-12)
    bound = fedsketch.theorem_6(1e-3, 100, mu=0.2, **NUMBERS)
    by_hand = (1 - 1e-3 * 4 * 0.2 * 10) ** 100 * 3 + noise / (2 * 0.2)
    assert bound == pytest.approx(by_hand, rel=1e-12)
    of_fedavg = NUMBERS | {"omega": 0.0, "gamma": 1.0}  # Corollary 5
    bound = fedsketch.theorem_5(1e-3, 100, **of_fedavg)
    noise = 2e-3 * crossed(X) / 4 * 0.25 + 4 * 1e-6 * 10 * 0.25
    assert bound == pytest.approx(2 * 3 / (1e-3 * 10 * 100) + noise, rel=1e-12)


def test_theorem_7_by_hand():
    phi = 1 / math.sqrt(40)
    step = {name: NUMBERS[name] for name in ("L", "k", "tau", "gamma", "omega")}
    expected = phi, pytest.approx(1 / (2 * (2 + phi) * 4 * 10 * 10), rel=1e-12)
    assert fedsketch.penalty_and_step(**step) == expected
    noise = (crossed(1 / 80) / 80 + 1 / (4 * 40**2 * 10)) * 0.25
    by_hand = (1 - phi / (2 * (2 + phi) * 10)) ** 100 * 3 + noise / (2 * phi)
    bound = fedsketch.theorem_7(100, r2=5.0, **NUMBERS)
    assert bound == pytest.approx(by_hand + phi / 2 * 5, rel=1e-12)


@pytest.mark.parametrize("sigma", [0.0, 0.5, 20.0])
@pytest.mark.parametrize("tau", [1, 10])
@pytest.mark.parametrize("target", [1.0, 0.1])
def test_rounds_to_a_target_are_the_fewest_within_condition_16(sigma, tau, target):
    numbers = NUMBERS | {"sigma": sigma, "tau": tau}
    for theorem, rounds, more in (
        (fedsketch.theorem_5, fedsketch.rounds_5, {}),
        (fedsketch.theorem_6, fedsketch.rounds_6, {"mu": 0.2}),
    ):
        eta, R = rounds(target, **numbers, **more)
        assert theorem(eta, R, **numbers, **more) <= target * (1 + 1e-9)
        assert theorem(eta, R - 1, **numbers, **more) > target
        x = eta * 2 * tau
        assert x**2 + 10 * 4 * x <= 1 + 1e-9
        if sigma == 0:  # the longest step
            assert x**2 + 10 * 4 * x == pytest.approx(1)
    del numbers["tau"]
    _, tau, R = fedsketch.rounds_7(target, r2=5.0, **numbers)
    bound = fedsketch.theorem_7(R, r2=5.0, tau=tau, **numbers)
    assert bound <= target * (1 + 1e-9)
