"""Chen et al.'s bounds: by hand, against each other, and against what is false."""

import math

import pytest

from fl_sketch.theory import safl

UNION = safl.union_of("srht", 10_000, 5000, 1e-3)
NUMBERS = {
    "L": 2.0, "I": 10.0, "f0": 2.3, "d": 10_000, "C": 5, "K": 2, "b1": 0.9, "eps": 0.5,
    "nu": 2.0, "union": UNION,
}  # fmt: skip
BOUNDED = NUMBERS | {"G": 1.5, "sigma": 0.3, "kappa": 0.01}
EXACT = BOUNDED | {"union": safl.union_of("identity", 10_000, 10_000, 1e-3)}


def test_what_the_print_of_theorem_3_2_loses_is_kept():
    """1 + tail for its root, G sigma, 2 G K^2, one d more, and S for single ones."""
    L, G, kappa, eta, eps, T = 2.0, 1.5, 0.01, 0.01, 0.5, 1000
    S = G + 0.3 * math.sqrt(math.log(2 * 5 * 2 * T / 1e-3))
    tails = [
        math.log(5 * 2 * 10_000**p * T**q / 1e-3) ** 1.5 / 5000**0.5
        for p, q in ((1, 1), (2, 2))
    ]
    smooth = kappa * eta**2 * L * 4 * T / eps * G * S
    noise = 0.3 * G * math.sqrt(math.log(2 * T / 1e-3))
    lucky = 2.0 * kappa * eta * 2 * T**0.5 / eps * (tails[0] * G * S + noise)
    curved = 8 * kappa * 10 * L * 4 + 2 * G * 4
    curved *= eta**2 * kappa * T * (1 + tails[1]) ** 2 / 0.1**2 / 0.25 * S**2
    inverse_j1 = (1 + tails[1]) * eta * 2 * S + eps
    by_hand = (2.3 + smooth + lucky + curved) * inverse_j1 / (kappa * eta * 2 * T)
    assert safl.theorem_3_2(eta, T, **BOUNDED) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("operator", ["srht", "count_sketch", "identity"])
def test_corollary_1_is_theorem_3_2_at_its_step_and_loses_no_factor(operator):
    """Equal at T = G^2 / eps^2, where eta K G = eps, and above it from there on."""
    union = safl.union_of(operator, 10_000_000, 1000, 1e-3)
    numbers = BOUNDED | {"sigma": 0.0, "d": 10_000_000, "union": union}
    for T, most in ((9, 1 + 1e-12), (10**6, 1000.0), (10**9, 1000.0)):
        short = safl.corollary_1(T, **numbers)
        whole = safl.theorem_3_2(1 / (2 * math.sqrt(T)), T, **numbers)
        assert whole * (1 - 1e-12) <= short <= whole * most
    with pytest.raises(ValueError, match="T >= 9"):
        safl.corollary_1(8, **numbers)


def chain(T, eta, G, numbers, b2, Delta):
    """Returns what the proof of Theorem 4.4 bounds f(w_T) by, term by term."""
    L, K, b1, eps = (numbers[name] for name in ("L", "K", "b1", "eps"))
    kappa, union, products = G**-0.5, numbers["union"], numbers["C"] * K * T
    grown = 1 + union(products * numbers["d"])
    each = 2 * math.sqrt(2 * G)  # no less than a stochastic gradient's mean length
    moment = grown * eta * K * each / eps
    drift = kappa * eta**2 * K**2 * L * math.sqrt(G) * each / eps
    change = math.sqrt(1 - b2) / eps**2 * grown * eta * K * each
    change *= kappa * math.sqrt(G) * grown * eta * K * each / (1 - b1)
    sums = (2 + (1 + b1) ** 2 / 2) / (1 - b1) ** 2
    curved = kappa**2 * sums * numbers["I"] * L * moment**2
    drawn = kappa * numbers["nu"] * eta * K * math.sqrt(T * G) / eps
    z = numbers["f0"] + T * (drift + change + curved)
    z += drawn * (union(products) * each + Delta)
    behind = b1 / (1 - b1) * kappa * moment
    return z + behind * math.sqrt(2 * L * z) + behind**2 * numbers["I"] * L / 2


@pytest.mark.parametrize("operator", ["identity", "srht", "count_sketch"])
@pytest.mark.parametrize("Delta", [0.0, 0.7])
def test_theorem_4_4_closes_its_own_chain(operator, Delta):
    union = safl.union_of(operator, 10_000, 5000, 1e-3)
    numbers, T, b2 = NUMBERS | {"union": union}, 10_000, 0.99
    longest = safl.theorem_4_4(T, b2=b2, Delta=Delta, **numbers)[0]
    for part in (1.0, 0.1):
        run = {"eta": part * longest, "b2": b2}
        eta, G, bound = safl.theorem_4_4(T, Delta=Delta, **run, **numbers)
        assert chain(T, eta, G, numbers, b2, Delta) <= G / (2 * 2.0)
        assert eta == pytest.approx(part * longest) and bound > 0
    assert G >= 4 * 2.0 * 2.3
    loud = safl.theorem_4_4(T, Delta=50.0, b2=b2, **numbers)[1]
    events = 2 * 5 * 2 * T / 1e-3
    assert loud >= 2 * (50 * (1 + math.sqrt(2 * math.log(events)))) ** 2 > G
    with pytest.raises(ValueError, match="eta <="):
        safl.theorem_4_4(T, 1.01 * longest, Delta=Delta, b2=b2, **numbers)


def test_a_tail_is_that_of_the_operator():
    assert safl.tail("gaussian", 1000, 100, 0.01) == math.log(1e5) ** 1.5 / 10
    assert safl.tail("count_sketch", 1000, 100, 1e-6) == math.log(1e6)
    assert safl.tail("identity", 1000, 100, 0.01) == 0
    with pytest.raises(ValueError, match="no tail of operator=uniform_sampling"):
        safl.tail("uniform_sampling", 1000, 100, 0.01)
