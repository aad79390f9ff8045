"""Song et al.'s numbers: as derived, consistent, and refused outside conditions."""

import math

import pytest

from fl_sketch import theory

CONVEX = {"smoothness": 2.0, "distance": 5.0, "alpha": 12.0, "clients": 4, "b": 100}
START = {"smoothness": 2.0, "start": 3.0, "alpha": 12.0}
MESSAGES = {"clients": 4, "b": 100}


@pytest.mark.parametrize("spread", [0.0, 1e-6, 30.0])
@pytest.mark.parametrize("steps", [1, 4])
def test_promised_rounds_are_enough_by_the_bounds_themselves(spread, steps):
    same = {"smoothness": 2.0, "distance": 5.0, "spread": spread, "steps": steps}
    same |= {"alpha": 12.0}
    for target in (1e-1, 1e-3):
        plan = theory.strongly_convex(
            target=target, convexity=0.2, steps=steps, spread=spread, **CONVEX
        )
        found = theory.strongly_convex_error(
            step=plan.step, rounds=plan.rounds, convexity=0.2, **same
        )
        assert found <= target * (1 + 1e-9)
        plan = theory.convex(target=target, steps=steps, spread=spread, **CONVEX)
        found = theory.convex_error(step=plan.step, rounds=plan.rounds, **same)
        assert 0.4 * target <= found <= target * (1 + 1e-9)


@pytest.mark.parametrize("target", [1e-1, 1e-2])
@pytest.mark.parametrize(
    ("plan", "error", "given"),
    [
        (
            theory.one_step_strongly_convex,
            theory.one_step_strongly_convex_error,
            START | {"convexity": 0.2},
        ),
        (
            theory.one_step_convex,
            theory.one_step_convex_error,
            {"smoothness": 2.0, "distance": 5.0, "alpha": 12.0},
        ),
        (theory.one_step_nonconvex, theory.one_step_nonconvex_error, START),
        (
            theory.nonconvex,
            theory.nonconvex_error,
            START | {"gradient": 1.5, "steps": 3, "server_rate": 0.5},
        ),
    ],
)
def test_promised_rounds_are_the_fewest_by_the_bound(plan, error, given, target):
    promised = plan(target=target, **MESSAGES, **given)
    bound = [
        error(step=promised.step, rounds=promised.rounds - less, **given)
        for less in (0, 1)
    ]
    assert bound[0] <= target * (1 + 1e-9) < bound[1]
    assert promised.bits == 32 * 4 * 100 * promised.rounds


def test_one_local_step_needs_no_drift_and_a_step_8_times_longer():
    """Without appendix E these constants ask for 1,235,697 rounds, for 1,700."""
    given = {"target": 1e-6, "smoothness": 1.0, "convexity": 0.1, "alpha": 12.0}
    given |= {"clients": 1, "b": 1}
    single = theory.one_step_strongly_convex(start=0.5, **given)
    several = theory.strongly_convex(distance=1.0, spread=1.0, steps=1, **given)
    assert single.rounds == 1700 and several.rounds == 1_235_697
    assert single.step == 8 * theory.largest_step(smoothness=1.0, steps=1, alpha=12.0)
    without = theory.strongly_convex(distance=1.0, spread=0.0, steps=1, **given)
    assert single.rounds < without.rounds / 8


def test_one_step_reaches_a_minimum_of_curvature_l_at_once():
    """Newton's step: without a sketch and with mu = L nothing is left."""
    given = {"smoothness": 2.0, "convexity": 2.0, "start": 3.0, "alpha": 0.0}
    assert theory.one_step_strongly_convex(target=1e-9, **MESSAGES, **given).rounds == 1
    assert theory.one_step_strongly_convex_error(step=0.5, rounds=1, **given) == 0


def test_bits_do_not_grow_as_the_sketch_shrinks():
    """Song's trade, below Corollary 5.2: (1 + alpha) b stays about a d."""
    bits = [
        theory.strongly_convex(
            target=0.01, smoothness=1.0, convexity=0.1, distance=1.0, spread=0.0,
            alpha=theory.alpha("srht", 10_000, b), clients=10, b=b,
        ).bits
        for b in (10_000, 1000, 100, 10)
    ]  # fmt: skip
    assert bits == sorted(bits, reverse=True) and bits[0] < 1.51 * bits[-1]


def test_the_values_of_a_hand_calculation():
    assert theory.alpha("count_sketch", 100, 10) == 30
    assert theory.alpha("uniform_sampling", 100, 10) == 9
    assert theory.alpha("identity", 100, 100) == 0
    assert theory.largest_step(smoothness=0.5, steps=5, alpha=1.0) == 1 / 40
    assert theory.one_step_largest(smoothness=0.5, alpha=1.0) == 1
    assert theory.one_step_largest(smoothness=0.5, alpha=1.0, convex=True) == 0.5
    error = theory.strongly_convex_error(
        step=0.01, rounds=100, steps=2, smoothness=2.0, convexity=0.5, distance=3.0,
        spread=0.25, alpha=1.0,
    )  # fmt: skip
    assert error == pytest.approx(3 * math.exp(-0.5) + 4 * 1e-4 * 4 * 8 * 0.25 / 0.5)
    error = theory.convex_error(
        step=0.01, rounds=100, steps=2, smoothness=2.0, distance=3.0, spread=0.25,
        alpha=1.0,
    )  # fmt: skip
    assert error == pytest.approx(4 * 3 / 2 + 32 * 1e-4 * 2 * 4 * 0.25)
    error = theory.one_step_convex_error(
        step=0.1, rounds=9, smoothness=2.0, distance=3.0, alpha=1.0
    )
    assert error == pytest.approx(3)
    error = theory.one_step_nonconvex_error(
        step=0.1, rounds=9, smoothness=2.0, start=3.0, alpha=1.0
    )
    assert error == pytest.approx(6)
    # 3 / (10 0.5 0.01 4) + 2 4 1.5^2 0.01 (1 + 0.5 (1 + 1) / 2)
    error = theory.nonconvex_error(
        step=0.01, rounds=9, steps=4, smoothness=2.0, gradient=1.5, start=3.0,
        alpha=1.0, server_rate=0.5,
    )  # fmt: skip
    assert error == pytest.approx(15 + 0.27)


def test_theorem_g_2_as_printed_is_false_at_the_start():
    """Of log(1 + x^2) / 2 at 0.1, with L = 1 and G = 1/2, before any round."""
    loss, square = math.log1p(0.01) / 2, (0.1 / 1.01) ** 2
    given = {"step": 1e-3, "rounds": 0, "steps": 1, "smoothness": 1.0, "alpha": 0.0}
    bound = theory.nonconvex_error(gradient=0.5, start=loss, **given)
    printed = loss / (0 + 1) + 1e-3 * 0.25 * (1e-3 + 1e-3 / 2)
    assert printed < square < bound


def error_5_1(**changes):
    given = {"step": 1e-3, "rounds": 9, "steps": 2, "smoothness": 2.0}
    given |= {"convexity": 0.2, "distance": 1.0, "spread": 0.0, "alpha": 1.0}
    return theory.strongly_convex_error(**given | changes)


def error_5_3(**changes):
    given = {"step": 1e-3, "rounds": 9, "steps": 2, "smoothness": 2.0}
    given |= {"distance": 1.0, "spread": 0.0, "alpha": 1.0}
    return theory.convex_error(**given | changes)


def error_e(name, **changes):
    given = {"step": 1e-3, "rounds": 9, "smoothness": 2.0, "alpha": 1.0}
    return getattr(theory, f"one_step_{name}_error")(**given | changes)


def error_g(**changes):
    given = {"step": 1e-3, "rounds": 9, "steps": 4, "smoothness": 2.0, "alpha": 1.0}
    return theory.nonconvex_error(**given | {"gradient": 1.0, "start": 1.0} | changes)


STRONG = {"convexity": 0.2, "start": 1.0}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: theory.alpha("count", 10, 5), "operator='count'"),
        (lambda: theory.largest_step(smoothness=0, steps=1, alpha=1.0), "smoothness=0"),
        (
            lambda: theory.convex(target=-1.0, spread=0.0, **CONVEX),
            "target > 0 and finite, got target=-1.0",
        ),
        (lambda: error_5_1(step=0.016), "5.1 asks for step <= 0.015625, got step="),
        (lambda: error_5_1(convexity=2.1), "convexity <= 2, got convexity=2.1"),
        (lambda: error_5_3(step=0.016), "5.3 asks for step <= 0.015625, got step="),
        (
            lambda: error_e("strongly_convex", step=0.26, **STRONG),
            "E.1 asks for step <= 0.25, got step=0.26",
        ),
        (
            lambda: error_e("strongly_convex", **STRONG | {"convexity": 2.1}),
            "E.1 asks for convexity <= 2, got",
        ),
        (
            lambda: error_e("convex", step=0.13, distance=1.0),
            "E.2 asks for step <= 0.125, got step=0.13",
        ),
        (
            lambda: error_e("nonconvex", step=0.26, start=1.0),
            "E.3 asks for step <= 0.25, got step=0.26",
        ),
        (lambda: error_g(step=0.07), "G.2 asks for step <= 0.0625, got step=0.07"),
        (lambda: error_5_1(step=-1e-3), "step > 0 and finite, got step=-0.001"),
        (lambda: error_5_1(rounds=-1), "rounds to be a number in .*got rounds=-1"),
        (lambda: error_5_3(step=-1e-3), "step > 0 and finite, got step=-0.001"),
        (lambda: error_5_3(step=math.nan), "step > 0 and finite, got step=nan"),
        (lambda: error_5_3(rounds=0), "rounds > 0 and finite, got rounds=0"),
        (
            lambda: error_e("strongly_convex", step=0.0, **STRONG),
            "step > 0 and finite, got step=0",
        ),
        (
            lambda: error_e("strongly_convex", rounds=-1, **STRONG),
            "rounds to be a number in .*got rounds=-1",
        ),
        (
            lambda: error_e("convex", rounds=-1, distance=1.0),
            "rounds to be a number in .*got rounds=-1",
        ),
        (
            lambda: error_e("nonconvex", rounds=-1, start=1.0),
            "rounds to be a number in .*got rounds=-1",
        ),
        (lambda: error_g(rounds=-1), "rounds to be a number in .*got rounds=-1"),
    ],
)
def test_what_a_theorem_does_not_speak_of_is_refused_in_a_line(call, words):
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_largest_steps_are_not_refused():
    error_5_1(step=theory.largest_step(smoothness=2.0, steps=2, alpha=1.0))
    longest = theory.one_step_largest(smoothness=2.0, alpha=1.0)
    error_e("strongly_convex", step=longest, **STRONG)
    error_e("convex", step=longest / 2, distance=1.0)
    error_g(step=1 / 16)
