"""Chen et al.'s numbers: as derived, consistent, and refused outside conditions."""

import functools
import math

import pytest

from fl_sketch import theory

ADAPTIVE = theory.Adaptive(
    smoothness=2.0, intrinsic=10.0, gradient=1.0, noise=0.3, loss=2.3, rate=0.01,
    b1=0.9, eps=0.5,
)  # fmt: skip
ONES = theory.Adaptive(1, 1, 1, 0, 1, 1, 0.0, 1, delta=1.0, delta_g=1.0, nu=0.0)
SIZES = theory.Sizes("srht", d=10_000, b=10_000, clients=5, steps=2)
ONE = theory.Sizes("srht", d=1, b=1, clients=1, steps=1)
WHOLE = SIZES._replace(operator="identity")


def test_safl_needs_the_fewest_rounds_that_do():
    plan = theory.adaptive(ADAPTIVE, SIZES, target=5.0)
    bound = functools.partial(theory.adaptive_long_run_error, ADAPTIVE, SIZES)
    assert bound(rounds=plan.rounds) <= 5 < bound(rounds=plan.rounds - 1)
    assert plan.step == 1 / (2 * math.sqrt(plan.rounds))
    assert plan.bits == 32 * 5 * 10_000 * plan.rounds


def test_the_adaptive_bound_at_values_of_one():
    # log(1) = 0: 1 / J_1 = 2; loss 1 + smooth 1 + curved 10, over kappa eta K T.
    assert theory.adaptive_error(ONES, ONE, step=1, rounds=1) == 24
    assert theory.adaptive_long_run_error(ONES, ONE, rounds=1) == 24
    # Tails of 1: J_3 = 3, times loss 1 + smooth 1 + curved 4 10.
    assert theory.adaptive_early_error(ONES, ONE, rounds=1, ceiling=3.0) == 3 * 42
    # T_0 = 1, J = 1, energy log 2: (1/sqrt 2 + 1) sqrt 2 (1 + 11 log 2).
    found = theory.adaptive_decaying_error(ONES, ONE, rounds=1)
    assert found == pytest.approx((1 + math.sqrt(2)) * (1 + 11 * math.log(2)))


def test_what_the_print_of_theorem_3_2_loses_is_kept():
    """Beside the print: 1 + tail for its root, G sigma, 2 G K^2, and one d more."""
    constants = ADAPTIVE._replace(gradient=1.5, nu=2.0)
    c, sizes, rounds, step = constants, SIZES, 1000, 0.01
    tails = [
        math.log(5 * 2 * 10_000**p * 1000**q / c.delta) ** 1.5 / 100
        for p, q in ((1, 1), (2, 2))
    ]
    square = c.gradient**2
    smooth = c.rate * step**2 * c.smoothness * 4 * square * rounds / c.eps
    noise = 0.3 * c.gradient * math.sqrt(math.log(2 * rounds / c.delta_g))
    lucky = 2.0 * c.rate * step * 2 * rounds**0.5 * (tails[0] * square + noise) / c.eps
    curved = 8 * c.rate * c.intrinsic * c.smoothness * 4 + 2 * c.gradient * 4
    curved *= step**2 * c.rate * rounds * (1 + tails[1]) ** 2 / 0.1**2 * square / 0.25
    inverse_j1 = (1 + tails[1]) * step * 2 * c.gradient + c.eps
    by_hand = (c.loss + smooth + lucky + curved) * inverse_j1
    found = theory.adaptive_error(c, sizes, step=step, rounds=rounds)
    assert found == pytest.approx(by_hand / (c.rate * step * 2 * rounds))


@pytest.mark.parametrize("operator", ["srht", "count_sketch", "identity"])
def test_corollary_1_is_theorem_3_2_at_its_step_and_loses_no_factor(operator):
    """Equal at T = G^2 / eps^2, where eta K G = eps, and above it from there on."""
    sizes = SIZES._replace(operator=operator, d=10_000_000, b=1000)
    for rounds, most in ((4, 1 + 1e-12), (10**6, 1000.0), (10**9, 1000.0)):
        step = 1 / (2 * math.sqrt(rounds))
        whole = theory.adaptive_error(ADAPTIVE, sizes, step=step, rounds=rounds)
        short = theory.adaptive_long_run_error(ADAPTIVE, sizes, rounds=rounds)
        assert whole * (1 - 1e-12) <= short <= whole * most


def test_corollary_2_is_above_theorem_3_2_while_it_speaks():
    for rounds in (1, 3, 10):
        ceiling = 2 * ADAPTIVE.gradient + ADAPTIVE.eps * math.sqrt(rounds)
        bound = theory.adaptive_early_error(
            ADAPTIVE, WHOLE, rounds=rounds, ceiling=ceiling
        )
        step = 1 / (2 * math.sqrt(rounds))
        assert theory.adaptive_error(ADAPTIVE, WHOLE, step=step, rounds=rounds) < bound


def test_a_long_message_of_few_rounds_has_corollary_2():
    sizes = theory.Sizes("srht", d=1 << 20, b=1 << 19, clients=5, steps=2)
    given = {"rounds": 9, "ceiling": 3.5}
    assert theory.adaptive_early_error(ADAPTIVE, sizes, **given) > 0
    short = sizes._replace(b=1 << 15)
    with pytest.raises(theory.Unreachable, match="asks for tail <= 1, got tail=1."):
        theory.adaptive_early_error(ADAPTIVE, short, **given)


@pytest.mark.parametrize("b1", [0.0, 0.5, 0.9, 0.99])
def test_moments_lag_behind_decaying_steps_by_no_more_than_lemma_b_4_says(b1):
    """The first moment of gradients of length 1, over the step of its round."""
    delay = math.ceil(1 / (1 - b1**2))
    lag = (1 - b1) / (1 - b1 * math.sqrt((delay + 1) / delay))
    moment, worst = 0.0, 0.0
    for number in range(1, 1000):
        step = theory.adaptive_decaying_step(number, b1=b1, steps=3)
        assert step == pytest.approx(1 / (3 * math.sqrt(number + delay)))
        moment = b1 * moment + (1 - b1) * step
        worst = max(worst, moment / step)
    assert worst <= lag
    constants = ADAPTIVE._replace(b1=b1, eps=1e-3, smoothness=1e6)
    # Curvature dominates, and grows with the square of the lag.
    ratio = theory.adaptive_decaying_error(constants, WHOLE, rounds=100)
    ratio /= theory.adaptive_decaying_error(
        constants._replace(intrinsic=20.0), WHOLE, rounds=100
    )
    assert ratio == pytest.approx(0.5, rel=0.01)


def test_decaying_steps_promise_less_than_constant_ones():
    for rounds in (100, 10_000):
        constant = theory.adaptive_long_run_error(ADAPTIVE, WHOLE, rounds=rounds)
        assert theory.adaptive_decaying_error(ADAPTIVE, WHOLE, rounds=rounds) > constant


FREE = theory.Unassuming(
    smoothness=2.0, intrinsic=10.0, deviation=0.0, loss=2.3, b1=0.9, b2=0.99, eps=0.5
)


def chain(constants, sizes, found, rounds):
    """Returns what the proof of Theorem 4.4 bounds L(x_T) by, term by term."""
    c, k, g, step, kappa = constants, sizes.steps, found.square, found.step, found.rate
    off = sizes.tail(c.delta, rounds)
    grown = 1 + sizes.tail(c.delta, rounds, coordinates=True)
    each = 2 * math.sqrt(2 * g)  # no less than a stochastic gradient's mean length
    moment = grown * step * k * each / c.eps
    drift = kappa * step**2 * k**2 * c.smoothness * math.sqrt(g) * each / c.eps
    change = math.sqrt(1 - c.b2) / c.eps**2 * grown * step * k * each
    change *= kappa * math.sqrt(g) * grown * step * k * each / (1 - c.b1)
    sums = (2 + (1 + c.b1) ** 2 / 2) / (1 - c.b1) ** 2
    curved = kappa**2 * sums * c.intrinsic * c.smoothness * moment**2
    drawn = kappa * c.nu * step * k * math.sqrt(rounds * g) / c.eps
    z = c.loss + rounds * (drift + change + curved)
    z += drawn * (off * each + c.deviation)
    behind = c.b1 / (1 - c.b1) * kappa * moment
    linear = behind * math.sqrt(2 * c.smoothness * z)
    return z + linear + behind**2 * c.intrinsic * c.smoothness / 2


@pytest.mark.parametrize("operator", ["identity", "srht", "count_sketch"])
@pytest.mark.parametrize("deviation", [0.0, 0.7])
def test_theorem_4_4_closes_its_own_chain(operator, deviation):
    sizes, rounds = SIZES._replace(operator=operator), 10_000
    free = FREE._replace(deviation=deviation)
    first = theory.adaptive_confined_largest(free, sizes, rounds=rounds)
    for part in (1.0, 0.1):
        found = theory.adaptive_confined(free, sizes, rounds=rounds, first=part * first)
        assert chain(free, sizes, found, rounds) <= found.square / (2 * free.smoothness)
        assert found.rate == pytest.approx(found.square**-0.5)
        assert found.step == part * first / 100
    assert found.square >= 4 * free.smoothness * free.loss
    noisier = free._replace(deviation=50.0)
    loud = theory.adaptive_confined(noisier, sizes, rounds=rounds, first=first)
    events = 2 * 5 * 2 / free.delta_c
    floor = 2 * (50 * (1 + math.sqrt(2 * math.log(events)))) ** 2
    assert loud.square >= floor > found.square


def test_tails_are_those_of_the_operator():
    same = {"d": 1000, "b": 100, "failure": 0.01}
    for operator in ("srht", "ams", "gaussian"):
        assert theory.tail(operator, **same) == math.log(1e5) ** 1.5 / 10
    for b in (1, 100, 10**6):
        found = theory.tail("count_sketch", d=1000, b=b, failure=0.01)
        assert found == math.log(1 / 0.01)
    assert theory.tail("identity", **same) == 0
    for operator in ("sparse_embedding", "uniform_sampling"):
        with pytest.raises(theory.Unreachable, match=f"got operator={operator}"):
            theory.tail(operator, **same)


def test_the_count_sketch_has_no_tail_that_falls_as_property_3_says():
    """Two coordinates meet with probability 1/b, and are off by 1 then."""
    d = b = 1 << 14
    failure = 1e-6
    assert theory.tail("srht", d=d, b=b, failure=failure) < 1
    assert 1 / b > 60 * failure
    assert theory.tail("count_sketch", d=d, b=b, failure=failure) > 1


CALLS = {
    "rounds >= 4, got rounds=3": lambda: theory.adaptive_long_run_error(
        ADAPTIVE, SIZES, rounds=3
    ),
    "tail <= 1, got tail=18.42": lambda: theory.adaptive_early_error(
        ADAPTIVE, SIZES._replace(operator="count_sketch"), rounds=1, ceiling=9.0
    ),
    "ceiling >= 2, got ceiling=1.9": lambda: theory.adaptive_early_error(
        ADAPTIVE, WHOLE, rounds=1, ceiling=1.9
    ),
    "rounds <= 4, got rounds=5": lambda: theory.adaptive_early_error(
        ADAPTIVE, WHOLE, rounds=5, ceiling=3.0
    ),
    "operator=uniform_sampling": lambda: theory.adaptive(
        ADAPTIVE, SIZES._replace(operator="uniform_sampling"), target=1.0
    ),
    "operator='shrt'. Did you mean 'srht'": lambda: theory.adaptive(
        ADAPTIVE, SIZES._replace(operator="shrt"), target=1.0
    ),
    "eps > 0 and finite, got eps=0": lambda: theory.adaptive(
        ADAPTIVE._replace(eps=0.0), SIZES, target=1.0
    ),
    "0 <= b1 < 1, got b1=1": lambda: theory.adaptive_error(
        ADAPTIVE._replace(b1=1.0), SIZES, step=1.0, rounds=1
    ),
    "Theorem 4.4 asks for first <= ": lambda: theory.adaptive_confined(
        FREE, WHOLE, rounds=100, first=1.0
    ),
    "failure=2.0": lambda: theory.tail("srht", d=10, b=5, failure=2.0),
    "step > 0 and finite, got step=-0.1": lambda: theory.adaptive_error(
        ADAPTIVE, SIZES, step=-0.1, rounds=9
    ),
    "rounds > 0 and finite, got rounds=0": lambda: theory.adaptive_error(
        ADAPTIVE, SIZES, step=0.1, rounds=0
    ),
    "rounds > 0 and finite, got rounds=-1": lambda: theory.adaptive_early_error(
        ADAPTIVE, WHOLE, rounds=-1, ceiling=3.0
    ),
    "rounds > 0 and finite, got rounds=-2": lambda: theory.adaptive_decaying_error(
        ADAPTIVE, SIZES, rounds=-2
    ),
    "rounds > 0 and finite, got rounds=-3": lambda: theory.adaptive_confined_largest(
        FREE, WHOLE, rounds=-3
    ),
    r"delta to be a number in \[0, 1\], got delta=2": lambda: theory.adaptive_error(
        ADAPTIVE._replace(delta=2.0), SIZES, step=0.1, rounds=9
    ),
    "delta_g > 0 and finite, got delta_g=0": lambda: theory.adaptive_error(
        ADAPTIVE._replace(delta_g=0.0), SIZES, step=0.1, rounds=9
    ),
    r"delta_c to be a number in \[0, 1\]": lambda: theory.adaptive_confined_largest(
        FREE._replace(delta_c=1.5), WHOLE, rounds=9
    ),
    r"more than 1e\+100 rounds to target=1e-80": lambda: theory.adaptive(
        ADAPTIVE, SIZES, target=1e-80
    ),
    r"more than 1e\+100 rounds to target=1.": lambda: theory.adaptive(
        ADAPTIVE._replace(gradient=1e160), SIZES, target=1.0
    ),
}


@pytest.mark.parametrize("words", CALLS)
def test_what_a_theorem_does_not_speak_of_is_refused_in_a_line(words):
    with pytest.raises(ValueError, match=words) as caught:
        CALLS[words]()
    assert "\n" not in str(caught.value)
