"""Chen et al.'s numbers: as derived, consistent, and refused outside conditions."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import signal

from fl_sketch import theory
from fl_sketch.theory import Constants
from fl_sketch.theory.safl import joint_tail, longest_gradient
from tests.refusals import refused

ADAPTIVE = Constants(
    smoothness=2.0, intrinsic=10.0, gradient=1.5, noise=0.3, deviation=0.7, start=2.3,
    server_rate=0.01, b1=0.9, b2=0.99, eps=0.5, nu=2.0, operator="srht", d=10_000,
    b=5000, clients=5, steps=2,
)  # fmt: skip
WHOLE = replace(ADAPTIVE, operator="identity")


def test_safl_needs_the_fewest_rounds_that_do():
    bound = theory.adaptive_long_run(ADAPTIVE, 5.0)
    fewer = replace(bound.constants, rounds=bound.rounds - 1)
    assert bound.error <= 5 < theory.adaptive_long_run(fewer).error
    assert bound == theory.adaptive_long_run(bound.constants)
    assert bound.step == 1 / (2 * math.sqrt(bound.rounds))
    assert bound.bits == 32 * 5 * 5000 * bound.rounds


@pytest.mark.parametrize(
    ("theorem", "changes", "error"),
    [
        (theory.adaptive, {"step": 0.01}, 4763.7117844563345),
        (theory.adaptive, {"step": 0.01, "noise": 0.0}, 1221.3956748402536),
        (theory.adaptive_long_run, {}, 28552.22614183957),
        (theory.adaptive_long_run, {"noise": 0.0}, 8635.019294496546),
        (theory.adaptive_decaying, {}, 1875913.912035409),
        (theory.adaptive_decaying, {"noise": 0.0}, 334688.92803173664),
        (theory.adaptive_confined, {}, 5073.810050718677),
        (theory.adaptive_confined, {"b1": 0.0}, 926.1945015446282),
        (
            functools.partial(theory.adaptive_early, ceiling=7.0),
            {"operator": "identity", "rounds": 9},
            37243.08546866039,
        ),
        (
            functools.partial(theory.adaptive_early, ceiling=6.0),
            {"operator": "identity", "rounds": 9, "noise": 0.0},
            11205.333333333338,
        ),
    ],
)
def test_bounds_are_what_they_were(theorem, changes, error):
    bound = theorem(replace(ADAPTIVE, **{"rounds": 1000} | changes))
    assert bound.error == pytest.approx(error, rel=1e-12)


def test_what_the_print_of_theorem_3_2_loses_is_kept():
    """1 + tail for its root, G sigma, 2 G K^2, one d more, and S for single ones."""
    c = replace(ADAPTIVE, rounds=1000, step=0.01)
    rate, rounds, step = c.server_rate, c.rounds, c.step
    longest = c.gradient + 0.3 * math.sqrt(math.log(2 * 5 * 2 * 1000 / c.delta_g))
    tails = [
        math.log(5 * 2 * 10_000**p * 1000**q / c.delta) ** 1.5 / 5000**0.5
        for p, q in ((1, 1), (2, 2))
    ]
    smooth = rate * step**2 * c.smoothness * 4 * rounds / c.eps
    smooth *= c.gradient * longest
    noise = 0.3 * c.gradient * math.sqrt(math.log(2 * rounds / c.delta_g))
    lucky = 2.0 * rate * step * 2 * rounds**0.5 / c.eps
    lucky *= tails[0] * c.gradient * longest + noise
    curved = 8 * rate * c.intrinsic * c.smoothness * 4 + 2 * c.gradient * 4
    curved *= step**2 * rate * rounds * (1 + tails[1]) ** 2 / 0.1**2 / 0.25
    curved *= longest**2
    inverse_j1 = (1 + tails[1]) * step * 2 * longest + c.eps
    by_hand = (c.start + smooth + lucky + curved) * inverse_j1
    by_hand /= rate * step * 2 * rounds
    assert theory.adaptive(c).error == pytest.approx(by_hand, rel=1e-12)


def test_noise_that_holds_amsgrad_back_is_in_the_bound_of_theorem_3_2():
    """One parameter on a slope of 1, and noise of 40 or -40: all steps are short.

    The bound with G for stochastic gradients is below 1, the mean `|f'|^2` of the walk.
    """
    rounds, step, rate, noise, b2 = 4_000_000, 1e-3, 1e-3, 40.0, 0.99
    start = 1.2 * rate * rounds / (noise + 10)  # the flat part is behind it
    constants = Constants(
        smoothness=100 / start, intrinsic=1.0, start=start, clients=1, steps=1, d=1,
        b=1, b1=0.0, eps=10 * step, nu=3.0, gradient=1.0, server_rate=rate, step=step,
        noise=noise / math.sqrt(math.log(2)), rounds=rounds, operator="identity",
    )  # fmt: skip
    sent = step * (1 + noise * np.random.default_rng(0).choice([-1, 1], rounds))
    means = signal.lfilter([1 - b2], [1, -b2], sent**2)
    moves = rate * sent / (np.sqrt(np.maximum.accumulate(means)) + constants.eps)
    assert np.cumsum(moves).max() < 0.98 * start  # so that the slope is 1 all the time
    assert theory.adaptive(constants).error > 1


def test_corollary_1_asks_for_more_rounds_where_noise_makes_gradients_longer():
    loud = replace(ADAPTIVE, noise=30.0)
    bound = theory.adaptive_long_run(loud, 1e9)
    longest = 1.5 + 30 * math.sqrt(math.log(2 * 10 * bound.rounds / 1e-3))
    assert bound.error < 1e9 and bound.rounds == math.ceil((longest / 0.5) ** 2)
    with pytest.raises(theory.Unreachable, match="rounds >="):
        theory.adaptive_long_run(replace(loud, rounds=bound.rounds - 1))


@pytest.mark.parametrize("operator", ["srht", "count_sketch", "identity"])
def test_corollary_1_is_theorem_3_2_at_its_step_and_loses_no_factor(operator):
    """Equal at T = G^2 / eps^2, where eta K G = eps, and above it from there on."""
    run = {"operator": operator, "noise": 0.0, "d": 10_000_000, "b": 1000}
    constants = replace(ADAPTIVE, **run)
    for rounds, most in ((9, 1 + 1e-12), (10**6, 1000.0), (10**9, 1000.0)):
        short = theory.adaptive_long_run(replace(constants, rounds=rounds))
        whole = theory.adaptive(short.constants).error
        assert whole * (1 - 1e-12) <= short.error <= whole * most


@pytest.mark.parametrize("rounds", [1, 3, 10])
def test_corollary_2_is_above_theorem_3_2_while_it_speaks(rounds):
    longest = longest_gradient(replace(WHOLE, rounds=rounds))
    ceiling = 2 * longest + WHOLE.eps * math.sqrt(rounds)
    bound = theory.adaptive_early(replace(WHOLE, rounds=rounds), ceiling=ceiling)
    assert bound.step == 1 / (2 * math.sqrt(rounds))
    assert theory.adaptive(bound.constants).error < bound.error


def test_corollary_2_needs_a_long_message_few_rounds_and_a_high_ceiling():
    constants = replace(ADAPTIVE, noise=0.0, d=1 << 20, b=1 << 19, rounds=9)
    assert theory.adaptive_early(constants, ceiling=4.5).error > 0
    tail = math.log(5 * 2 * 81 * 2**40 / 1e-3) ** 1.5 / 2**7.5
    for changes, ceiling, found in (
        ({"b": 1 << 15}, 4.5, f"tail <= 1 .*got tail={tail:.6g}"),
        ({"operator": "count_sketch"}, 4.5, "tail <= 1 .*got tail="),
        ({}, 2.9, "ceiling >= 3 .*got ceiling=2.9"),
        ({"rounds": 10}, 4.5, "rounds <= 9 .*got rounds=10"),
    ):
        with pytest.raises(theory.Unreachable, match=found):
            theory.adaptive_early(replace(constants, **changes), ceiling=ceiling)


@pytest.mark.parametrize("b1", [0.0, 0.5, 0.9, 0.99])
def test_moments_lag_behind_decaying_steps_by_no_more_than_lemma_b_4_says(b1):
    """The first moment of gradients of length 1, over the step of its round."""
    constants = replace(WHOLE, b1=b1, steps=3, rounds=100, eps=1e-3, smoothness=1e6)
    delay = math.ceil(1 / (1 - b1**2))
    lag = (1 - b1) / (1 - b1 * math.sqrt((delay + 1) / delay))
    moment, worst = 0.0, 0.0
    for number in range(1, 1000):
        step = theory.adaptive_decaying_step(constants, number)
        assert step == pytest.approx(1 / (3 * math.sqrt(number + delay)))
        moment = b1 * moment + (1 - b1) * step
        worst = max(worst, moment / step)
    assert worst <= lag
    # Curvature dominates, of a bound that has the square of the lag.
    error = theory.adaptive_decaying(constants).error
    twice = theory.adaptive_decaying(replace(constants, intrinsic=20.0)).error
    assert error / twice == pytest.approx(0.5, rel=0.01)


def chain(bound):
    """Returns what the proof of Theorem 4.4 bounds L(x_T) by, term by term."""
    c, k, g = bound.constants, bound.constants.steps, bound.largest
    rounds, step, kappa = c.rounds, c.step, c.server_rate
    off = joint_tail(c, rounds)
    grown = 1 + joint_tail(c, rounds, coordinates=True)
    each = 2 * math.sqrt(2 * g)  # no less than a stochastic gradient's mean length
    moment = grown * step * k * each / c.eps
    drift = kappa * step**2 * k**2 * c.smoothness * math.sqrt(g) * each / c.eps
    change = math.sqrt(1 - c.b2) / c.eps**2 * grown * step * k * each
    change *= kappa * math.sqrt(g) * grown * step * k * each / (1 - c.b1)
    sums = (2 + (1 + c.b1) ** 2 / 2) / (1 - c.b1) ** 2
    curved = kappa**2 * sums * c.intrinsic * c.smoothness * moment**2
    drawn = kappa * c.nu * step * k * math.sqrt(rounds * g) / c.eps
    z = c.start + rounds * (drift + change + curved)
    z += drawn * (off * each + c.deviation)
    behind = c.b1 / (1 - c.b1) * kappa * moment
    linear = behind * math.sqrt(2 * c.smoothness * z)
    return z + linear + behind**2 * c.intrinsic * c.smoothness / 2


@pytest.mark.parametrize("operator", ["identity", "srht", "count_sketch"])
@pytest.mark.parametrize("deviation", [0.0, 0.7])
def test_theorem_4_4_closes_its_own_chain(operator, deviation):
    c = replace(ADAPTIVE, operator=operator, deviation=deviation, rounds=10_000)
    longest = theory.adaptive_confined(c).step
    for part in (1.0, 0.1):
        bound = theory.adaptive_confined(replace(c, step=part * longest))
        assert chain(bound) <= bound.largest / (2 * c.smoothness)
        assert bound.constants.server_rate == pytest.approx(bound.largest**-0.5)
        assert bound.step == part * longest and bound.error > 0
    assert bound.largest >= 4 * c.smoothness * c.start
    loud = theory.adaptive_confined(replace(c, deviation=50.0, step=longest))
    events = 2 * 5 * 2 * 10_000 / c.delta_g
    floor = 2 * (50 * (1 + math.sqrt(2 * math.log(events)))) ** 2
    assert loud.largest >= floor > bound.largest
    with pytest.raises(theory.Unreachable, match="step <=.*4.4"):
        theory.adaptive_confined(replace(c, step=1.01 * longest))


def test_tails_are_those_of_the_operator():
    sizes = {"d": 1000, "b": 100, "failure": 0.01}
    for operator in ("srht", "ams", "gaussian"):
        assert theory.tail(operator, **sizes) == math.log(1e5) ** 1.5 / 10
    for b in (1, 100, 10**6):
        tail = theory.tail("count_sketch", d=1000, b=b, failure=0.01)
        assert tail == math.log(1 / 0.01)
    assert theory.tail("identity", **sizes) == 0
    for operator in ("sparse_embedding", "uniform_sampling"):
        with pytest.raises(theory.Unreachable, match=f"got operator={operator}"):
            theory.tail(operator, **sizes)
    for failure in (0.0, 2.0):
        with pytest.raises(ValueError, match=f"got failure={failure}"):
            theory.tail("srht", d=10, b=5, failure=failure)


def test_the_count_sketch_has_no_tail_that_falls_as_property_3_says():
    """Two coordinates meet with probability 1/b, and are off by 1 then."""
    d = b = 1 << 14
    failure = 1e-6
    assert theory.tail("srht", d=d, b=b, failure=failure) < 1
    assert 1 / b > 60 * failure
    assert theory.tail("count_sketch", d=d, b=b, failure=failure) > 1


@pytest.mark.parametrize(
    ("theorem", "changes", "found"),
    [
        (
            theory.adaptive_long_run,
            {"rounds": 8, "noise": 0.0},
            "rounds >= 9 .*got rounds=8",
        ),
        (theory.adaptive, {"step": math.nan}, "step > 0 .*got step=nan"),
        (theory.adaptive, {"rounds": 0}, "rounds > 0 .*got rounds=0"),
        (theory.adaptive_decaying, {"rounds": 0}, "rounds > 0 .*got rounds=0"),
        (theory.adaptive_confined, {"rounds": 0}, "rounds > 0 .*got rounds=0"),
        (theory.adaptive_confined, {"b2": math.nan}, "b2 >= 0 .*got b2=nan"),
        (theory.adaptive, {"delta_g": 0.0}, "delta_g > 0 .*got delta_g=0"),
        (theory.adaptive, {"eps": 0.0}, "eps > 0 .*got eps=0"),
        (theory.adaptive, {"operator": "shrt"}, "'shrt'. Did you mean 'srht'"),
    ],
)
def test_what_a_theorem_does_not_speak_of_is_refused_in_a_line(theorem, changes, found):
    with refused(match=found):
        theorem(replace(ADAPTIVE, **{"step": 0.1, "rounds": 9} | changes))


@pytest.mark.parametrize(
    ("changes", "target", "found"),
    [
        ({}, 1e-80, r"1e\+100 rounds .*target=1e-80"),
        ({"gradient": 1e160}, 1.0, r"1e\+100 rounds .*target=1"),
        ({"operator": "uniform_sampling"}, 1.0, "operator=uniform_sampling"),
    ],
)
def test_targets_out_of_reach_are_refused(changes, target, found):
    with pytest.raises(theory.Unreachable, match=found):
        theory.adaptive_long_run(replace(ADAPTIVE, **changes), target)
