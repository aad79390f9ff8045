"""The accountant agrees with dp-accounting, and never says less than it should."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fl_sketch.privacy import accounting, guarantee, noise_size
from fl_sketch.privacy.accounting import Plan
from fl_sketch.privacy.composition import together
from fl_sketch.privacy.lattice import Integers
from tests.launching import ENVIRONMENT
from tests.refusals import refused

PLAN = Plan(steps=200, sample=50, population=1000)
ONE = Plan(steps=1, sample=1, population=1, sampling="everyone")
REPLACED = {"relation": "replace_one"}
FIXED = PLAN._replace(sampling="fixed", **REPLACED)
PLANS = [PLAN, PLAN._replace(**REPLACED), FIXED, PLAN._replace(sampling="everyone")]
DELTA = 1e-5


def spent(plan, z, accountant=None, delta=DELTA):
    return accounting.epsilon(plan, z, delta=delta, accountant=accountant)


def test_no_jax_is_imported():
    code = (
        "import sys, fl_sketch.privacy.composition, fl_sketch.privacy.noise_size\n"
        "assert not any(n.split('.')[0] in ('jax', 'jaxlib') for n in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("plan", "z", "accountant", "value", "tolerance"),
    [
        (PLAN, 2.0, "rdp", 1.72130679, 2e-4),
        (PLAN, 2.0, "pld", 1.56060547, 1e-3),
        (Plan(2250, 40, 1000), 1.5, "rdp", 7.3293, 7e-4),
        (ONE, 2.0, "rdp", 2.16571566, 3e-4),
        (ONE._replace(**REPLACED), 2.0, "rdp", 4.72850707, 6e-4),
    ],
)
def test_epsilons_are_known_values_of_exact_noise_and_no_less(
    plan, z, accountant, value, tolerance
):
    found = spent(plan, z, accountant)
    assert type(found) is float
    assert value - 1e-6 <= found < value + tolerance


@pytest.mark.parametrize(
    ("plan", "epsilon", "accountant"),
    [
        (PLAN._replace(steps=20), 2.0, "rdp"),
        (PLAN, 1.0, "pld"),  # the cut takes the least noise above epsilon
        (PLAN._replace(steps=30, **REPLACED), 0.3, None),
        (ONE, 1.0, None),
        pytest.param(PLAN._replace(releases=2), 30.0, None, marks=pytest.mark.slow),
        pytest.param(FIXED._replace(steps=1), 0.1, None, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_calibrated_noise_keeps_the_promise_as_drawn_and_hardly_more(
    plan, epsilon, accountant
):
    """Also in a run whose messages are long and whose Poisson cohorts are cut."""
    promise = {"epsilon": epsilon, "delta": DELTA, "accountant": accountant}
    z = accounting.calibrate(plan, **promise)
    cut = accounting.cut_chance(1000, 50) if plan.sampling == "poisson" else 0.0
    for drawn in (plan, plan._replace(coordinates=10**6, cut=cut)):
        assert 0.99 * epsilon < spent(drawn, z, accountant) <= epsilon


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_replacing_one_costs_what_half_the_noise_would(accountant):
    whole = PLAN._replace(sampling="everyone")
    replaced = spent(whole._replace(**REPLACED), 20.0, accountant)
    assert replaced == pytest.approx(spent(whole, 10.0, accountant), rel=1e-6)
    assert spent(PLAN._replace(**REPLACED), 2.0) > spent(PLAN, 2.0)


def test_two_releases_of_a_cohort_are_not_two_cohorts():
    twice = spent(PLAN._replace(releases=2), 2.0)
    assert twice == pytest.approx(spent(PLAN, 2.0 / 2**0.5), rel=1e-6)
    assert twice > spent(PLAN._replace(steps=400), 2.0)


@pytest.mark.parametrize(
    ("plan", "accountant"),
    [(PLAN, "rdp"), (FIXED, None), (PLANS[3], "rdp"), (PLANS[1], None)],
)
def test_epsilon_grows_with_rounds_and_rate_and_shrinks_with_noise(plan, accountant):
    def of(z=0.8, **changes):
        given = {"steps": 7, "sample": 20} | changes
        return spent(plan._replace(**given), z, accountant)

    here = of()
    assert here < of(steps=107) and of(1.04) < here < of(releases=2)
    assert (here < of(sample=120)) == (plan.sampling != "everyone")


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_no_noise_gives_away_everything_and_no_sample_nothing(plan):
    assert spent(plan, 0.0) == math.inf
    assert spent(plan._replace(steps=0), 0.0) == 0.0
    if plan.sampling != "everyone":
        assert spent(plan._replace(sample=0), 0.0) == 0.0


def sums(plan, **options):
    return plan._replace(integers=Integers(16, 50, lengths=(64,))._replace(**options))


@pytest.mark.parametrize(
    ("plan", "accountant", "words"),
    [
        (PLAN._replace(sampling="fixed"), None, "relation=replace_one"),
        (FIXED, "pld", "accountant=rdp"),
        (PLAN._replace(**REPLACED), "rdp", "accountant=pld"),
        (PLAN._replace(sampling="replacement"), None, "replacement"),
        (PLAN._replace(relation="swap"), None, "swap"),
        (PLAN, "moments", "moments"),
        (PLAN._replace(sample=1001), None, "sample=1001"),
        (FIXED._replace(sample=2.5), None, "sample=2.5"),
        (PLAN._replace(releases=0), None, "releases=0"),
        (PLAN._replace(steps=-1), None, "steps=-1"),
        (sums(PLAN), "pld", "accountant=rdp"),
        (sums(PLANS[3], smallest=20), None, "relation=replace_one"),
        (sums(PLANS[1], smallest=20), None, "sampling='poisson'"),
        (sums(PLAN, lengths=(64, 64)), None, "each release"),
    ],
)
def test_what_no_accountant_can_count_is_refused_in_one_line(plan, accountant, words):
    for call in (
        lambda: spent(plan, 1.0, accountant),
        lambda: accounting.calibrate(
            plan, epsilon=1.0, delta=DELTA, accountant=accountant
        ),
    ):
        with refused(match=words):
            call()


def test_bad_promises_are_refused():
    for delta in (0.0, 1e-16, 1.0, -1.0, math.nan):
        with refused("delta="):
            spent(PLAN, 1.0, delta=delta)
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with refused("epsilon="):
            accounting.calibrate(PLAN, epsilon=epsilon, delta=DELTA)
    for z in (-1.0, math.nan):
        with refused("noise_multiplier="):
            spent(PLAN, z)
    with refused("delta=0.001"):
        accounting.require_delta(PLAN, 1e-3)
    # A target that sampling alone keeps, and one that cut cohorts alone exceed.
    with refused("noise_multiplier=0.000488 for epsilon=1.0"):
        accounting.calibrate(Plan(1, 0.005, 1000), epsilon=1.0, delta=1e-5)
    with refused("cohort's size", "epsilon=8.0", "20 cut cohorts alone"):
        accounting.calibrate(Plan(20, 100, 400), epsilon=8.0, delta=1e-14)


# What the end of drawn noise, and of drawn cohorts, costs.

SHORT = Plan(500, 100, 100, coordinates=200)


def test_the_end_is_paid_from_delta_and_costs_nothing_to_speak_of():
    extra = accounting.charged(SHORT, 0.7, 0.0)
    assert 0 < extra < 1e-6 / 1000
    assert math.isfinite(spent(SHORT, 0.7, delta=1e-6))
    twice = SHORT._replace(coordinates=1, releases=2)
    once = accounting.charged(twice._replace(releases=1), 0.3, 0.0)
    assert accounting.charged(twice, 0.3, 0.0) == pytest.approx(2 * once)


def test_too_little_noise_for_its_end_is_no_promise():
    assert spent(SHORT, 0.1, delta=1e-6) == math.inf
    with refused("delta / 1000"):
        accounting.calibrate(SHORT._replace(steps=5), epsilon=1e4, delta=1e-6)


def test_samples_that_are_cut_are_paid_for():
    plan = Plan(1000, 50, 1000, cut=1e-9)
    assert spent(plan, 2.0, delta=1e-3) > spent(plan._replace(cut=0.0), 2.0, delta=1e-3)
    assert spent(plan, 2.0, delta=1e-5 / 2) == math.inf


def test_shares_of_many_are_paid_for_at_e_to_the_epsilon():
    shared = sums(Plan(50, 40, 40, "everyone", coordinates=64, **REPLACED), smallest=9)
    least = 50 * 64 * shared.integers.most * accounting.TABLE
    for epsilon in (0.0, 3.0):
        paid = accounting.charged(shared, 5.0, epsilon)
        assert paid == pytest.approx(least * (1 + math.exp(epsilon)))


def test_what_the_end_of_the_noise_costs_is_the_mass_beyond_it():
    reach = 3.0  # where a Monte Carlo sees it
    random = np.random.default_rng(0)
    for shift, coordinates in ((0.0, 1), (1.0, 1), (1.5, 20)):
        bound = accounting.missing(shift, coordinates, reach)
        room = 4 * (bound / 200_000) ** 0.5
        for moved in (shift * np.eye(coordinates)[0], shift / coordinates**0.5):
            x = random.normal(size=(200_000, coordinates)) + moved
            assert (np.abs(x) > reach).any(axis=1).mean() <= bound + room
    assert accounting.missing(2.5, 1, reach) == 1.0


@pytest.mark.parametrize(("population", "expected"), [(1000, 50.0), (10**6, 1000.0)])
def test_a_cohort_has_the_fewest_places_but_one_that_are_enough(population, expected):
    places, rate = accounting.places_for(population, expected), expected / population
    larger = stats.binom.sf([places - 1, places - 2], population, rate)
    assert larger[0] <= accounting.CUT < larger[1]
    assert accounting.places_for(60, 50.0) == 60
    assert accounting.cut_chance(60, 50.0) == 0


def test_the_chance_of_a_cut_is_that_of_others_who_leave_no_place(monkeypatch):
    """Or the last one, at a chance that a Monte Carlo sees."""
    monkeypatch.setattr(accounting, "CUT", 0.01)
    places = accounting.places_for(200, 30.0)
    others = np.random.default_rng(0).binomial(199, 30 / 200, 200_000)
    seen = (others >= places - 1).mean()
    assert seen <= accounting.cut_chance(200, 30.0) < 1.3 * seen


# Several runs together.


def test_runs_compose_as_rounds_do_in_any_order():
    other = (PLAN._replace(steps=20), 3.0)
    one = together([(PLAN, 2.0), other], delta=DELTA)
    assert together([other, (PLAN, 2.0)], delta=DELTA) == pytest.approx(one)
    assert spent(PLAN, 2.0) < one < spent(PLAN._replace(steps=220), 2.0)


def test_what_gives_nothing_away_costs_nothing_and_no_noise_costs_all():
    assert together([(PLAN._replace(steps=0), 2.0)], delta=DELTA) == 0.0
    assert math.isinf(together([(PLAN, 2.0), (PLAN, 0.0)], delta=DELTA))


def test_runs_of_samplers_that_no_one_accountant_knows_share_delta():
    fixed = Plan(50, 40, 50, "fixed", **REPLACED)
    both = together([(PLAN, 2.0), (fixed, 20.0)], delta=DELTA)
    expected = spent(PLAN._replace(**REPLACED), 2.0, delta=DELTA / 2)
    expected += spent(fixed, 20.0, delta=DELTA / 2)
    assert both == pytest.approx(expected, rel=1e-3)


def test_runs_of_unlike_relations_are_counted_by_the_one_that_all_keep():
    """Gaussians of 2C / z1 and 2C / z2 are one of their length together."""
    added = Plan(1, 50, 50, "everyone")
    replaced = added._replace(**REPLACED)
    both = together([(added, 1.0), (replaced, 20.0)], delta=DELTA)
    assert both == pytest.approx(spent(replaced, (1 + 1 / 400) ** -0.5), rel=1e-3)
    assert both > 2 * spent(added, 1.0)


def test_every_run_of_a_total_pays_for_its_cut():
    """Each takes 0.6 of what delta allows."""
    plan = PLAN._replace(cut=0.6 * DELTA / 1000 / PLAN.steps)
    parts = [(plan, 2.0), (plan._replace(sample=20), 2.0)]
    assert all(math.isfinite(together([part], delta=DELTA)) for part in parts)
    assert math.isinf(together(parts, delta=DELTA))


# What a run promises, and what its noise will do.


def test_a_run_ends_in_whole_rounds_before_its_target_or_its_plan():
    plan, options = PLAN._replace(steps=60), {"delta": DELTA, "per_round": 7}
    free = guarantee.promised(plan, rounds=100, noise_multiplier=1.0, **options)
    assert free.rounds == 8 and free.facts["releases"] == 7
    target = {"noise_multiplier": 1.0, "target_epsilon": 1.9}
    bound = guarantee.promised(plan, rounds=100, **target, **options)
    last = bound.rounds
    assert 0 < last < 8 and bound.epsilon(last) <= 1.9 < bound.epsilon(last + 1)
    assert bound.epsilon(2) == pytest.approx(spent(plan._replace(steps=14), 1.0))
    for changes, words in (
        ({"delta": 1e-3}, "delta=0.001"),
        ({"target_epsilon": 0.01}, "target_epsilon=0.01"),
    ):
        with refused(match=words):
            guarantee.promised(plan, rounds=9, **target | options | changes)


@given(st.floats(1e-9, 1e9), st.integers(1, 9))
def test_a_printed_number_is_hardly_more_and_never_less(value, digits):
    printed = float(guarantee.rounded_up(value, digits))
    assert value <= printed <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-15)


def promise(plan, z=4.0, **about):
    return guarantee.promised(
        plan, rounds=plan.steps, noise_multiplier=z, delta=DELTA, **about
    )


POISSON = Plan(20, 40, 400, coordinates=900)
SIZES = {
    "central": (promise(POISSON), 40, 4 * 30 / 40),
    "two releases": (promise(POISSON._replace(releases=2)), 40, 4 * 450**0.5 / 40),
    "shares of 10 of 40": (
        promise(sums(FIXED._replace(sample=40, steps=2, coordinates=64), smallest=10)),
        40,
        4 * (40 / 10) ** 0.5 * 8 / 40,
    ),
    "steps of examples": (
        promise(FIXED._replace(coordinates=900), unit="example", per_round=5),
        10,
        4 * 30 / 50 / 50**0.5,
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_noise_of_a_mean_is_that_of_the_formula(name):
    given, clients, expected = SIZES[name]
    found = noise_size.ratio(given, clients=clients)
    assert found == pytest.approx(expected, rel=1e-3)
    said, *helps = noise_size.lines(given, clients=clients)
    assert guarantee.rounded_up(found, 3) in said and bool(helps) == (found > 1)


def test_what_is_said_to_help_gives_what_it_says():
    given = promise(POISSON)
    (_, line) = noise_size.lines(given, clients=40)
    assert "400 clients a round, among as many times more" in line
    assert "messages of 9 numbers" in line
    for plan, clients in (
        (POISSON._replace(sample=400, population=4000), 400),
        (POISSON._replace(coordinates=9), 40),
    ):
        assert noise_size.ratio(promise(plan), clients=clients) == pytest.approx(0.3)
    epsilon = float(line.rpartition("epsilon = ")[2])
    assert epsilon == pytest.approx(spent(POISSON, 0.4), rel=0.01)
    assert not [*noise_size.lines(None, clients=40)]
