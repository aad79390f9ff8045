"""Song et al.'s numbers: as derived, consistent, and refused outside conditions."""

import math
from dataclasses import replace

import pytest

from fl_sketch import theory
from fl_sketch.theory import Constants
from tests.refusals import refused

CONSTANTS = Constants(
    smoothness=2.0, convexity=0.2, distance=5.0, start=3.0, spread=0.0, gradient=1.5,
    alpha=12.0, clients=4, b=100,
)  # fmt: skip
ONE_STEP = {
    "E.1": theory.one_step_strongly_convex,
    "E.2": theory.one_step_convex,
    "E.3": theory.one_step_nonconvex,
}
THEOREMS = ONE_STEP | {
    "5.1": theory.strongly_convex,
    "5.3": theory.convex,
    "G.2": theory.nonconvex,
}


@pytest.mark.parametrize("spread", [0.0, 1e-6, 30.0])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("target", [1e-1, 1e-3])
def test_promised_rounds_are_enough_by_the_bounds_themselves(spread, steps, target):
    constants = replace(CONSTANTS, spread=spread, steps=steps)
    strong = theory.strongly_convex(constants, target)
    convex = theory.convex(constants, target)
    assert strong.error <= target * (1 + 1e-9)
    assert 0.4 * target <= convex.error <= target * (1 + 1e-9)
    if spread * target == 0.03:  # drift holds both steps, and is half the target
        drift = 4 * strong.step**2 * 4 * steps**3 * spread / 0.2
        assert drift == pytest.approx(target / 2)
        drift = 32 * convex.step**2 * 2 * steps**2 * spread
        assert drift == pytest.approx(target / 2)


@pytest.mark.parametrize("target", [1e-1, 1e-2])
@pytest.mark.parametrize("name", [*ONE_STEP, "G.2"])
def test_promised_rounds_are_the_fewest_by_the_bound(name, target):
    steps = {"steps": 3, "server_rate": 0.5} if name == "G.2" else {}
    bound = THEOREMS[name](replace(CONSTANTS, **steps), target)
    fewer = THEOREMS[name](replace(bound.constants, rounds=bound.rounds - 1))
    assert bound.error <= target * (1 + 1e-9) < fewer.error
    assert bound.error == THEOREMS[name](bound.constants).error
    assert bound.bits == 32 * 4 * 100 * bound.rounds


def test_one_local_step_needs_no_drift_and_a_step_8_times_longer():
    """Without appendix E these constants ask for 1,235,697 rounds, for 1,700."""
    constants = Constants(
        smoothness=1.0, convexity=0.1, alpha=12.0, start=0.5, distance=1.0, spread=1.0
    )
    single = theory.one_step_strongly_convex(constants, 1e-6)
    assert single.rounds == 1700 and single.step == 1 / 13
    assert theory.strongly_convex(constants, 1e-6).rounds == 1_235_697
    without = theory.strongly_convex(replace(constants, spread=0.0), 1e-6)
    assert single.rounds < without.rounds / 8 and single.step == 8 * without.step


def test_one_step_reaches_a_minimum_of_curvature_l_at_once():
    """Newton's step: without a sketch and with mu = L nothing is left."""
    constants = Constants(smoothness=2.0, convexity=2.0, start=3.0, alpha=0.0)
    bound = theory.one_step_strongly_convex(constants, 1e-9)
    assert (bound.rounds, bound.step, bound.error) == (1, 0.5, 0)


def test_bits_do_not_grow_as_the_sketch_shrinks():
    """Song's trade, below Corollary 5.2: (1 + alpha) b stays about a d."""
    constants = Constants(
        smoothness=1.0, convexity=0.1, distance=1.0, spread=0.0, clients=10,
        operator="srht", d=10_000,
    )  # fmt: skip
    bits = [
        theory.strongly_convex(replace(constants, b=b), 0.01).bits
        for b in (10_000, 1000, 100, 10)
    ]
    assert bits == sorted(bits, reverse=True) and bits[0] < 1.51 * bits[-1]


@pytest.mark.parametrize(
    ("operator", "alpha"),
    [("count_sketch", 30), ("gaussian", 30), ("srht", 20), ("ams", 20),
     ("sparse_embedding", 20), ("uniform_sampling", 9), ("identity", 0)],
)  # fmt: skip
def test_alpha_is_that_of_table_1(operator, alpha):
    assert theory.alpha(operator, 100, 10) == alpha
    known = replace(CONSTANTS, operator=operator, d=100, b=10)
    own = theory.one_step_convex(replace(known, alpha=math.nan), 1.0)
    assert own.step == theory.one_step_convex(replace(known, alpha=alpha), 1.0).step


@pytest.mark.parametrize(
    ("name", "rounds", "value"),
    [
        # L/2 |w0 - w*|^2 e^(-mu eta T) + 4 eta^2 L^2 K^3 sigma^2 / mu
        ("5.1", 100, 3 * math.exp(-0.5) + 4 * 1e-4 * 4 * 8 * 0.25 / 0.5),
        # 4 |w0 - w*|^2 / (eta K T) + 32 eta^2 L K^2 sigma^2
        ("5.3", 100, 4 * 3 / 2 + 32 * 1e-4 * 2 * 4 * 0.25),
        # start / ((T + 1) gamma eta K) + L K G^2 eta (1 + gamma (1 + alpha) / 2)
        ("G.2", 9, 3.5 / (10 * 0.5 * 0.02) + 2 * 2 * 1.5**2 * 0.01 * 1.5),
        ("E.1", 9, (1 - 0.5 * 0.01) ** 9 * 3.5),
        ("E.2", 9, 3 / (0.01 * 10)),
        ("E.3", 9, 2 * 3.5 / (0.01 * 10)),
    ],
)
def test_the_values_of_a_hand_calculation(name, rounds, value):
    constants = Constants(
        smoothness=2.0, convexity=0.5, distance=3.0, start=3.5, spread=0.25,
        gradient=1.5, alpha=1.0, step=0.01, rounds=rounds, server_rate=0.5,
        steps=1 if name in ONE_STEP else 2,
    )  # fmt: skip
    assert THEOREMS[name](constants).error == pytest.approx(value, rel=1e-12)


def test_theorem_g_2_as_printed_is_false_at_the_start():
    """Of log(1 + x^2) / 2 at 0.1, with L = 1 and G = 1/2, before any round."""
    loss, square = math.log1p(0.01) / 2, (0.1 / 1.01) ** 2
    constants = Constants(
        smoothness=1.0, gradient=0.5, start=loss, alpha=0.0, step=1e-3, rounds=0
    )
    printed = loss / (0 + 1) + 1e-3 * 0.25 * (1e-3 + 1e-3 / 2)
    assert printed < square < theory.nonconvex(constants).error


@pytest.mark.parametrize("steps", [1, 4])
def test_one_local_step_has_the_theorems_of_appendix_e(steps):
    constants = replace(CONSTANTS, steps=steps)
    for objective, single, several in (
        ("strongly_convex", "E.1", "5.1"),
        ("convex", "E.2", "5.3"),
        ("nonconvex", "E.3", "G.2"),
    ):
        bound = theory.iterative_sketching(constants, objective, 0.1)
        assert bound == THEOREMS[single if steps == 1 else several](constants, 0.1)
    with pytest.raises(ValueError, match="objective='covnex'"):
        theory.iterative_sketching(constants, "covnex", 0.1)


LARGEST = {"5.1": 1 / 416, "5.3": 1 / 416, "G.2": 1 / 8,
           "E.1": 1 / 26, "E.2": 1 / 52, "E.3": 1 / 26}  # fmt: skip


@pytest.mark.parametrize("name", LARGEST)
def test_a_theorem_admits_its_largest_step_and_none_beyond(name):
    theorem, steps = THEOREMS[name], 1 if name in ONE_STEP else 2
    constants = replace(CONSTANTS, steps=steps, rounds=9)
    theorem(replace(constants, step=LARGEST[name]))
    with pytest.raises(theory.Unreachable, match=rf"step <=.*{name}.*got step="):
        theorem(replace(constants, step=1.01 * LARGEST[name]))
    for unknown in (0.0, math.nan):
        with pytest.raises(ValueError, match=f"step > 0.*{name}.*got step={unknown}"):
            theorem(replace(constants, step=unknown))
    for target in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"target > 0.*got target={target}"):
            theorem(constants, target)


@pytest.mark.parametrize(
    ("name", "changes", "found"),
    [
        ("5.1", {"convexity": 2.1}, "convexity <= 2 .*got convexity=2.1"),
        ("E.1", {"convexity": 2.1}, "convexity <= 2 .*got convexity=2.1"),
        ("E.1", {"convexity": math.nan}, "convexity > 0 .*got convexity=nan"),
        ("E.2", {"steps": 2}, "steps <= 1 .*got steps=2"),
        ("E.3", {"smoothness": 0.0}, "smoothness > 0 .*got smoothness=0.0"),
        ("5.3", {"spread": math.nan}, "spread >= 0 .*got spread=nan"),
        ("5.3", {"rounds": 0}, "rounds >= 1 .*got rounds=0"),
        ("G.2", {"gradient": math.nan}, "gradient > 0 .*got gradient=nan"),
        ("G.2", {"alpha": math.nan, "operator": "count"}, "operator='count'"),
        ("G.2", {"alpha": math.nan, "operator": "srht"}, "d to be .*got d=0"),
    ],
)  # fmt: skip
def test_what_a_theorem_does_not_speak_of_is_refused_in_a_line(name, changes, found):
    constants = replace(CONSTANTS, **{"step": 1e-3, "rounds": 9} | changes)
    with refused(match=found):
        THEOREMS[name](constants)


@pytest.mark.parametrize(
    ("name", "value"),
    [("smoothness", -1.0), ("start", math.inf), ("rounds", -1), ("b1", 1.0),
     ("delta", 2.0), ("delta_g", 1.5)],
)  # fmt: skip
def test_constants_refuse_values_that_no_theorem_has(name, value):
    with pytest.raises(ValueError, match=rf"{name}.*got {name}={value}"):
        Constants(**{name: value})
