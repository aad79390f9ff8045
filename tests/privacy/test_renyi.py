"""Divergences of Skellam noise are above exact ones, and those of known formulas."""

import math

import numpy as np
import pytest
from scipy import special

from fl_sketch.privacy import accounting, integer_noise, lattice, renyi
from fl_sketch.privacy.accounting import Plan
from fl_sketch.privacy.composition import together
from fl_sketch.privacy.lattice import Integers
from tests.refusals import refused

pytestmark = pytest.mark.fast

ORDERS = np.array([2, 3, 5, 8, 16])
VARIANCE, SHIFT = 30.0, 2


def chances(variance):
    """Returns the probabilities of the integers from -n to n."""
    weights = integer_noise.weights(variance)
    half = np.array([w / 2.0**integer_noise.CHANCE for w in weights])
    half[1:] /= 2
    return np.concatenate([half[:0:-1], half])


def shifted(probabilities, by):
    """Returns two distributions on one range, one of them moved."""
    pad = np.zeros(by)
    return [np.concatenate(p) for p in ((probabilities, pad), (pad, probabilities))]


def divergence(order, one, other):
    """Returns that of two distributions, where both have a chance."""
    inside = (one > 1e-290) & (other > 1e-290)
    logs = order * np.log(one[inside]) + (1 - order) * np.log(other[inside])
    return special.logsumexp(logs) / (order - 1)


@pytest.mark.parametrize(("variance", "shift"), [(2.0, 1), (30.0, 2), (900.0, 6)])
def test_one_number_is_bounded_and_nearly_reached(variance, shift):
    sides = shifted(chances(variance), shift)
    bound = renyi.skellam(ORDERS, l1=shift, l2=shift, variance=variance)
    exact = np.array([divergence(order, *sides) for order in ORDERS])
    assert np.all(exact <= bound * (1 + 1e-9))
    assert np.all(bound < exact * (1 + 4 / math.sqrt(variance)))


def curve(orders):
    """Returns the divergences of a number that moves by `SHIFT`."""
    return renyi.skellam(orders, variance=VARIANCE, l1=SHIFT, l2=SHIFT)


def moments(order):
    return {j: math.exp((j - 1) * curve(np.array([j]))[0]) for j in range(2, order + 1)}


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_samples_have_the_sums_of_the_theorems(rate):
    general = renyi.poisson_sample(curve, rate, symmetric=False)(ORDERS)
    symmetric = renyi.poisson_sample(curve, rate, symmetric=True)(ORDERS)
    fixed = renyi.fixed_sample(curve, rate)(ORDERS)
    for number, a in enumerate(ORDERS):
        each = moments(a)
        first = (1 - rate) ** (a - 1) * (1 + (a - 1) * rate)
        terms = {
            j: math.comb(a, j) * (1 - rate) ** (a - j) * rate**j * each[j] for j in each
        }
        more = first + sum(term * (1 if j == 2 else 3) for j, term in terms.items())
        for found, total in ((general, more), (symmetric, first + sum(terms.values()))):
            assert found[number] == pytest.approx(math.log(total) / (a - 1), rel=1e-6)
        replaced = 1 + sum(
            math.comb(a, j)
            * rate**j
            * (min(4 * (each[2] - 1), 2 * each[2]) if j == 2 else 2 * each[j])
            for j in each
        )
        assert fixed[number] == pytest.approx(math.log(replaced) / (a - 1), rel=1e-6)
    assert np.all(symmetric <= general) and np.all(general < curve(ORDERS))


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_samples_of_one_number_are_bounded_in_all_directions(rate):
    pad = np.zeros(SHIFT)
    still = np.concatenate([pad, chances(VARIANCE), pad])
    up, down = np.roll(still, SHIFT), np.roll(still, -SHIFT)
    more, less = ((1 - rate) * still + rate * moved for moved in (up, down))
    sampled = renyi.poisson_sample(curve, rate, symmetric=True)
    either = renyi.exchanged(sampled)(ORDERS)
    for order, one, two in zip(ORDERS, sampled(ORDERS), either, strict=True):
        exact = divergence(order, more, still)
        assert max(exact, divergence(order, still, more)) <= one < 1.4 * exact
        exact = divergence(order, more, less)
        assert max(exact, divergence(order, less, more)) <= two < 12 * exact


def test_orders_between_whole_ones_lie_on_a_line_above_the_divergence():
    """Of one number with Skellam noise, whose exact divergences are known."""
    sides = shifted(chances(VARIANCE), SHIFT)
    orders = (1.5, 2.0, 2.5, 3.0, 7.1)
    found = renyi.Accountant(orders).compose(renyi.CurveDpEvent(curve)).rdp
    for order, one in zip(orders, found, strict=True):
        exact = divergence(order, *sides)
        assert exact <= one < 1.45 * exact
        assert one <= curve(np.ceil(order)) + 1e-12


def plan_of(sampling="everyone", relation="add_remove", **options):
    sums = {"bits": 16, "most": 20, "lengths": (1024,)} | options
    return Plan(
        steps=10,
        sample=20,
        population=20 if sampling == "everyone" else 100,
        sampling=sampling,
        relation=relation,
        coordinates=1024,
        integers=Integers(**sums),
    )


def test_the_noise_is_that_of_googles_accountant(monkeypatch):
    """Their `skellam_local_stddev`, at a scale of 350, a norm of 3 and 16 clients."""
    theirs = 11.43585395098052
    monkeypatch.setattr(lattice, "scale", lambda *of: 1050.0)
    sums = Integers(bits=32, most=16, lengths=(2**24,))
    plan = Plan(150, 16, 16, "everyone", coordinates=2**24, integers=sums)
    z = theirs * math.sqrt(16) / 3
    assert accounting.epsilon(plan, z, delta=0.01) == pytest.approx(6, abs=1e-6)
    least = accounting.calibrate(plan, epsilon=6, delta=0.01)
    assert least * 3 / math.sqrt(16) == pytest.approx(theirs, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "relation", "smallest"),
    [
        ("everyone", "replace_one", 20),
        ("fixed", "replace_one", 15),
        ("everyone", "add_remove", 0),
        ("poisson", "add_remove", 0),
        ("poisson", "replace_one", 0),
    ],
)
def test_noise_keeps_its_promise_and_fine_steps_cost_little(
    sampling, relation, smallest
):
    plan = plan_of(sampling, relation, smallest=smallest)
    z = accounting.calibrate(plan, epsilon=4.0, delta=1e-5)
    assert accounting.epsilon(plan, z, delta=1e-5) <= 4.0
    assert accounting.epsilon(plan, 0.99 * z, delta=1e-5) > 4.0
    if (sampling, relation) == ("everyone", "add_remove"):
        promise = {"epsilon": 4.0, "delta": 1e-5, "accountant": "rdp"}
        floats = accounting.calibrate(plan._replace(integers=None), **promise)
        assert floats <= z < 1.01 * floats


@pytest.mark.slow
def test_fixed_cohorts_take_about_the_noise_of_the_gaussians_own_bound():
    plan = plan_of("fixed", "replace_one", smallest=20, bits=24)._replace(steps=200)
    promise = {"epsilon": 2.0, "delta": 1e-5}
    floats = accounting.calibrate(plan._replace(integers=None), **promise)
    assert accounting.calibrate(plan, **promise) < 1.1 * floats


def test_two_releases_of_a_sample_cost_what_twice_the_rounds_do():
    once = plan_of()
    sums = once.integers._replace(lengths=(1024, 1024))
    twice = once._replace(releases=2, integers=sums)
    more = accounting.epsilon(once._replace(steps=20), 20.0, delta=1e-5)
    assert accounting.epsilon(twice, 20.0, delta=1e-5) == pytest.approx(more)


def test_coarse_steps_cost_more_until_no_noise_helps():
    found = [
        accounting.calibrate(plan_of(bits=bits), epsilon=4.0, delta=1e-5)
        for bits in (10, 12, 16)
    ]
    assert found == sorted(found, reverse=True)
    with refused("bits=8", "more bits"):
        accounting.calibrate(plan_of(bits=8), epsilon=0.1, delta=1e-5)


def test_runs_of_integers_and_of_floats_add_up():
    plan, floats = plan_of(), plan_of()._replace(integers=None)
    alone = together([(plan, 20.0)], delta=1e-5)
    both = together([(plan, 20.0), (floats, 20.0)], delta=1e-5)
    assert alone == accounting.epsilon(plan, 20.0, delta=1e-5)
    assert alone < both < 2 * alone
