"""Divergences of integer noise are above exact ones, and those of known formulas."""

import math

import numpy as np
import pytest
from scipy import special

from fl_sketch.privacy import accounting, integer_tables, lattice, renyi
from fl_sketch.privacy.lattice import Integers
from fl_sketch.privacy.plans import Plan
from tests.refusals import refused

pytestmark = pytest.mark.fast

ORDERS = np.array([2, 3, 5, 8, 16])


def chances(kind, variance):
    """Returns the probabilities of the integers from -n to n."""
    weights = integer_tables.weights(kind, variance)
    half = np.array([w / 2.0**integer_tables.CHANCE for w in weights])
    half[1:] /= 2
    return np.concatenate([half[:0:-1], half])


def shifted(probabilities, by):
    """Returns two distributions on one range, one of them moved."""
    pad = np.zeros(abs(by))
    pair = [
        np.concatenate(parts) for parts in ((probabilities, pad), (pad, probabilities))
    ]
    return pair if by > 0 else pair[::-1]


def divergence(order, one, other):
    """Returns that of two distributions, where both have a chance."""
    inside = (one > 1e-290) & (other > 1e-290)
    logs = order * np.log(one[inside]) + (1 - order) * np.log(other[inside])
    return special.logsumexp(logs) / (order - 1)


@pytest.mark.parametrize(("variance", "shift"), [(2.0, 1), (30.0, 2), (900.0, 6)])
@pytest.mark.parametrize("kind", lattice.KINDS)
def test_one_number_is_bounded_and_nearly_reached(kind, variance, shift):
    sides = shifted(chances(kind, variance), shift)
    sizes = {"l1": shift, "l2": shift, "variance": variance}
    if kind == "skellam":
        bound = renyi.skellam(ORDERS, **sizes)
    else:
        bound = renyi.discrete_gaussian(ORDERS, tau=0.0, length=1, **sizes)
    exact = np.array([divergence(order, *sides) for order in ORDERS])
    assert np.all(exact <= bound * (1 + 1e-9))
    assert np.all(bound < exact * (1 + 4 / math.sqrt(variance)))


@pytest.mark.parametrize(("variance", "draws"), [(0.3, 2), (0.3, 5), (1.0, 3)])
def test_a_sum_of_discrete_gaussians_is_bounded_though_it_is_none(variance, draws):
    one = total = chances("discrete_gaussian", variance)
    for _ in range(draws - 1):
        total = np.convolve(total, one)
    tau = renyi.excess(variance, draws)
    bound = renyi.discrete_gaussian(
        ORDERS, variance=draws * variance, tau=tau, l1=1, l2=1, length=1
    )
    exact = np.array([divergence(order, *shifted(total, 1)) for order in ORDERS])
    assert np.all(exact <= bound)
    alone = ORDERS / (2 * draws * variance)
    assert tau > 0 and np.all(alone < bound)


def test_the_excess_falls_with_the_noise_and_grows_with_the_draws():
    expected = 10 * sum(math.exp(-2 * math.pi**2 * 0.2 * k / (k + 1)) for k in (1, 2))
    assert renyi.excess(0.2, 3) == pytest.approx(expected)
    assert renyi.excess(0.2, 1) == 0.0
    assert renyi.excess(0.2, 30) > renyi.excess(0.2, 3) > renyi.excess(0.3, 3)


VARIANCE, SHIFT = 30.0, 2


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
@pytest.mark.parametrize("kind", lattice.KINDS)
def test_samples_of_one_number_are_bounded_in_all_directions(kind, rate):
    noise = chances(kind, VARIANCE)
    pad = np.zeros(SHIFT)
    still = np.concatenate([pad, noise, pad])
    up, down = np.roll(still, SHIFT), np.roll(still, -SHIFT)
    more, less = ((1 - rate) * still + rate * moved for moved in (up, down))
    sampled = renyi.poisson_sample(curve, rate, symmetric=True)
    either = renyi.exchanged(sampled)(ORDERS)
    for order, one, two in zip(ORDERS, sampled(ORDERS), either, strict=True):
        exact = divergence(order, more, still)
        assert max(exact, divergence(order, still, more)) <= one < 1.4 * exact
        exact = divergence(order, more, less)
        assert max(exact, divergence(order, less, more)) <= two < 12 * exact


def test_the_larger_direction_is_the_one_that_has_a_formula():
    """Point by point, for pairs of points that a reflection exchanges."""
    for rate in (1e-3, 0.1, 0.5, 0.9, 0.999):
        ratio = np.exp(np.linspace(0, 15, 3001))
        up, down = 1 - rate + rate * ratio, 1 - rate + rate / ratio
        for order in (2, 3, 7, 40):
            larger = up**order + ratio * down**order
            smaller = up ** (1 - order) + ratio * down ** (1 - order)
            assert np.all(smaller <= larger * (1 + 1e-12))


def test_fixed_cohorts_take_about_the_noise_of_the_gaussians_own_bound():
    plan = plan_of(sampling="fixed", relation="replace_one", smallest=20, bits=24)
    plan = plan._replace(steps=200)
    promise = {"epsilon": 2.0, "delta": 1e-5}
    floats = accounting.calibrate(
        plan._replace(noise="gaussian", integers=None), **promise
    )
    assert accounting.calibrate(plan, **promise) < 1.1 * floats


def test_orders_between_whole_ones_lie_on_a_line_above_the_divergence():
    """Of one number with Skellam noise, whose exact divergences are known."""
    sides = shifted(chances("skellam", VARIANCE), SHIFT)
    orders = (1.5, 2.0, 2.5, 3.0, 7.1)
    found = renyi.Accountant(orders).compose(renyi.CurveDpEvent(curve)).rdp
    for order, one in zip(orders, found, strict=True):
        exact = divergence(order, *sides)
        assert exact <= one < 1.45 * exact
        assert one <= curve(np.ceil(order)) + 1e-12


def test_one_draw_costs_what_a_gaussian_does_at_large_epsilons():
    """Whose best order is no whole number."""
    plan = plan_of("discrete_gaussian", bits=24)._replace(steps=1)
    gaussian = plan._replace(noise="gaussian", integers=None)
    promise = {"epsilon": 10.0, "delta": 1e-5, "accountant": "rdp"}
    floats = accounting.calibrate(gaussian, **promise)
    assert floats <= accounting.calibrate(plan, **promise) < 1.001 * floats


def test_a_sample_of_all_is_no_sample():
    assert renyi.poisson_sample(curve, 1.0, symmetric=True) is curve
    assert renyi.fixed_sample(curve, 1.0) is curve


def plan_of(kind="skellam", sampling="everyone", relation="add_remove", **options):
    sums = {"bits": 16, "most": 20, "lengths": (1024,)} | options
    return Plan(
        steps=10,
        sample=20,
        population=20 if sampling == "everyone" else 100,
        sampling=sampling,
        relation=relation,
        coordinates=1024,
        noise=kind,
        integers=Integers(**sums),
    )


def test_the_noise_is_that_of_googles_accountant():
    """Their `skellam_local_stddev`, at a scale of 350, a norm of 3 and 16 clients."""
    theirs = 11.43585395098052
    sums = Integers(bits=32, most=16, granularity=1 / 1050, lengths=(2**24,))
    plan = Plan(150, 16, 16, "everyone", noise="skellam", integers=sums)
    z = theirs * math.sqrt(16) / 3
    assert accounting.epsilon(plan, z, delta=0.01) == pytest.approx(6, abs=1e-6)
    least = accounting.calibrate(plan, epsilon=6, delta=0.01)
    assert least * 3 / math.sqrt(16) == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "sampling", "relation", "smallest"),
    [
        ("skellam", "everyone", "replace_one", 20),
        ("skellam", "fixed", "replace_one", 15),
        ("discrete_gaussian", "everyone", "add_remove", 0),
        ("discrete_gaussian", "everyone", "replace_one", 20),
        ("discrete_gaussian", "fixed", "replace_one", 15),
        ("discrete_gaussian", "poisson", "add_remove", 0),
        ("discrete_gaussian", "poisson", "replace_one", 0),
    ],
)
def test_noise_keeps_its_promise_and_fine_steps_cost_little(
    kind, sampling, relation, smallest
):
    plan = plan_of(kind, sampling, relation, smallest=smallest)
    z = accounting.calibrate(plan, epsilon=4.0, delta=1e-5)
    assert accounting.spent(plan, z, delta=1e-5) <= 4.0
    assert accounting.spent(plan, 0.99 * z, delta=1e-5) > 4.0
    if (sampling, relation) == ("everyone", "add_remove"):
        gaussian = plan._replace(noise="gaussian", integers=None)
        floats = accounting.calibrate(
            gaussian, epsilon=4.0, delta=1e-5, accountant="rdp"
        )
        assert floats <= z < 1.01 * floats


def test_two_releases_of_a_sample_cost_what_twice_the_rounds_do():
    once = plan_of()
    twice = once._replace(
        releases=2, integers=once.integers._replace(lengths=(1024, 1024))
    )
    more = accounting.epsilon(once._replace(steps=20), 20.0, delta=1e-5)
    assert accounting.epsilon(twice, 20.0, delta=1e-5) == pytest.approx(more)


def test_shares_are_counted_for_every_cohort_that_may_be_released():
    """Fewer clients bring less noise, more of them a sum that is less like one draw."""
    options = {"kind": "discrete_gaussian", "relation": "replace_one"}
    z, options = 1.4, options | {"granularity": 0.5}
    few = plan_of(**options, smallest=15)
    many = plan_of(**options, smallest=15, most=200)
    assert accounting.epsilon(few, z, delta=1e-5) < accounting.epsilon(
        many, z, delta=1e-5
    )


def test_coarse_steps_cost_more_until_no_noise_helps():
    found = [
        accounting.calibrate(plan_of(bits=bits), epsilon=4.0, delta=1e-5)
        for bits in (10, 12, 16)
    ]
    assert found == sorted(found, reverse=True)
    with refused("bits=8", "more bits"):
        accounting.calibrate(plan_of(bits=8), epsilon=0.1, delta=1e-5)


@pytest.mark.parametrize(
    ("plan", "accountant", "words"),
    [
        (plan_of(), "pld", "accountant=rdp"),
        (plan_of(smallest=20), None, "relation=replace_one"),
        (
            plan_of(sampling="poisson", relation="replace_one", smallest=20),
            None,
            "sampling='poisson'",
        ),
        (plan_of()._replace(integers=None), None, "integers=None"),
        (plan_of()._replace(releases=2), None, "length for each release"),
        (plan_of(sampling="fixed"), None, "relation=replace_one"),
    ],
)
def test_what_nobody_knows_is_refused_in_one_line(plan, accountant, words):
    with refused(words):
        accounting.epsilon(plan, 1.0, delta=1e-5, accountant=accountant)


def test_runs_of_integers_and_of_floats_add_up():
    from fl_sketch.privacy import composition

    plan, floats = plan_of(), plan_of()._replace(noise="gaussian", integers=None)
    alone = composition.together([(plan, 20.0)], delta=1e-5)
    both = composition.together([(plan, 20.0), (floats, 20.0)], delta=1e-5)
    assert alone == pytest.approx(accounting.spent(plan, 20.0, delta=1e-5), rel=1e-3)
    assert alone < both < 2 * alone
    trials = composition.Trials(10.0)
    best = composition.best_of_a_random_number(plan, 20.0, trials, delta=1e-5)
    assert alone < best < 10 * alone
