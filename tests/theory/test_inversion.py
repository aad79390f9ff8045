"""Song et al.'s Theorems K.2 and K.3: by hand, on a quadratic, and refused."""

import math
from dataclasses import replace

import pytest

from fl_sketch import theory
from fl_sketch.theory import Constants, Unreachable
from tests.refusals import refused

# (2 x)^2: a slope of 4 times its root, and twice a curvature of 4.
QUADRATIC = Constants(
    smoothness=8.0, convexity=8.0, slope=4.0, dent=0.0, roughness=0.0, power=0.5,
    distance=1.0, start=4.0,
)  # fmt: skip
ROUGH = replace(QUADRATIC, dent=0.01, roughness=0.3, power=0.5)


def test_the_values_of_a_hand_calculation():
    # alpha^(1/p) = 0.09, (alpha / theta^p)^(1 / (1 - p)) = (0.3 / 2)^2
    zeta = 4 / (4 - 0.09) * (64 + 0.0225)
    xi = 8 - 2 * 0.01 * zeta / 16 - 2 * 0.01
    bound = theory.input_descent(replace(ROUGH, step=0.01, rounds=7))
    assert bound.error == pytest.approx((1 - xi * 0.01 / 2) ** 7, rel=1e-12)
    chosen = theory.input_descent(ROUGH, 1e-3)
    assert chosen.step == pytest.approx(xi / (2 * zeta), rel=1e-12)
    assert chosen.error <= 1e-3 < theory.input_descent(
        replace(chosen.constants, rounds=chosen.rounds - 1)
    ).error  # fmt: skip


def test_powers_other_than_a_half():
    # c^(1/2p) = 0.01^2, c^(1 / (2 - 2p)) = 0.01^(2/3), alpha^(1/p) = 0.3^4
    constants = replace(ROUGH, power=0.25)
    rough = (0.3 / 4**0.25) ** (4 / 3)
    zeta = 4 / (4 - 0.3**4) * (64 + rough)
    xi = 8 - 2 * 0.01**2 * zeta / 16 - 2 * 0.01 ** (2 / 3)
    assert theory.input_descent(constants, 0.1).step == pytest.approx(xi / (2 * zeta))


@pytest.mark.parametrize("step", [0.01, 1 / 16])
def test_the_bound_is_above_descent_on_a_quadratic_and_the_print_is_not(step):
    """As printed the distance falls to xi eta / 2 of itself."""
    bound = theory.input_descent(replace(QUADRATIC, step=step, rounds=1))
    measured = (1 - 8 * step) ** 2  # of the squared distance
    assert bound.error >= measured
    if step == 0.01:
        assert (8 * step / 2) ** 2 < measured


def test_twice_the_rounds_square_the_bound():
    once = theory.input_descent(replace(ROUGH, step=0.01, rounds=10)).error
    assert theory.input_descent(replace(ROUGH, step=0.01, rounds=20)).error == (
        pytest.approx(once**2)
    )


def test_an_input_is_as_near_as_its_objective_is_small():
    assert theory.unique_input(QUADRATIC).error == 1  # 4 at a distance of 1
    assert theory.unique_input(replace(QUADRATIC, start=1e-4)).error == 2.5e-5


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"roughness": 2.0}, "roughness < slope.*K.3.*got roughness=2"),
        ({"dent": 0.9}, "convexity > 9 .*K.3.*got convexity=8"),
        ({"power": 1.0}, "power < 1 .*got power=1"),
        ({"step": 0.07}, "step <= 0.0625 .*got step=0.07"),
        ({"dent": math.nan}, "dent >= 0 .*got dent=nan"),
        ({"slope": 0.0}, "slope > 0 .*got slope=0"),
    ],
)
def test_what_theorem_k_3_does_not_speak_of_is_refused_in_a_line(changes, found):
    constants = replace(QUADRATIC, **{"step": 0.01, "rounds": 1, **changes})
    with refused(match=found):
        theory.input_descent(constants)


@pytest.mark.parametrize("target", [None, 0.1])
def test_theorem_k_3_refuses_constants_of_no_objective(target):
    constants = replace(QUADRATIC, smoothness=1.0, step=5.0, rounds=3)
    with refused(match="convexity < 2 .*K.3.*got convexity=8", error=Unreachable):
        theory.input_descent(constants, target)


def test_theorem_k_2_needs_a_slope_and_a_power_below_one():
    for changes, found in (
        ({"slope": 0.0}, "slope > 0"),
        ({"power": 1.0}, "power < 1"),
    ):
        with refused(match=found):
            theory.unique_input(replace(QUADRATIC, **changes))
