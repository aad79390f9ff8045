"""The accountant agrees with dp-accounting, and never says less than it should."""

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_sketch.privacy import (
    accounting,
    composition,
    guarantee,
    literature,
    plans,
    tails,
)
from fl_sketch.privacy.accounting import Plan
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
        "import sys, fl_sketch.privacy.composition, fl_sketch.privacy.literature\n"
        "assert not any(n.split('.')[0] in ('jax', 'jaxlib') for n in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("plan", "z", "accountant", "value", "tolerance"),
    [
        (PLAN, 2.0, "rdp", 1.72130679, 1e-4),
        (PLAN, 2.0, "pld", 1.56060547, 1e-3),
        (Plan(2250, 40, 1000), 1.5, "rdp", 7.3293, 1e-4),
        (ONE, 2.0, "rdp", 2.16571566, 1e-4),
        (ONE._replace(**REPLACED), 2.0, "rdp", 4.72850707, 1e-4),
    ],
)
def test_epsilons_are_known_values(plan, z, accountant, value, tolerance):
    assert spent(plan, z, accountant) == pytest.approx(value, abs=tolerance)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_results_are_plain_floats(accountant):
    plan, z = PLAN._replace(steps=5), 2.0
    asked = {"accountant": accountant}
    assert type(accounting.epsilon(plan, z, delta=DELTA, **asked)) is float
    assert type(accounting.delta(plan, z, epsilon=1.0, **asked)) is float
    assert type(accounting.spent(plan, z, delta=DELTA, **asked)) is float
    assert type(composition.together([(plan, z), (FIXED, z)], delta=DELTA)) is float


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
    assert 0.99 * epsilon < spent(plan, z, accountant) <= epsilon
    cut = tails.cut_chance(1000, 50) if plan.sampling == "poisson" else 0.0
    for drawn in (plan, plan._replace(coordinates=10**6, cut=cut)):
        counted = accounting.spent(drawn, z, delta=DELTA, accountant=accountant)
        assert counted <= epsilon
    assert accounting.steps_within(plan, z, **promise) == plan.steps
    if plan.steps > 1:
        assert accounting.steps_within(plan, 0.9 * z, **promise) < plan.steps
    delta = accounting.delta(plan, z, epsilon=epsilon, accountant=accountant)
    assert delta <= DELTA * (1 + 1e-6)


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
    [(PLAN, "rdp"), (FIXED, "rdp"), (PLANS[3], "rdp"), (PLANS[1], "pld")],
)
@pytest.mark.parametrize(("steps", "sample", "z"), [(7, 20, 0.8), (150, 400, 3.0)])
def test_epsilon_grows_with_rounds_and_rate_and_shrinks_with_noise(
    plan, accountant, steps, sample, z
):
    def of(z=z, **changes):
        given = {"steps": steps, "sample": sample} | changes
        return spent(plan._replace(**given), z, accountant)

    here = of()
    assert here < of(steps=steps + 100) and of(1.3 * z) < here < of(releases=2)
    assert (here < of(sample=sample + 100)) == (plan.sampling != "everyone")


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_no_noise_gives_away_everything_and_no_sample_nothing(plan):
    assert spent(plan, 0.0) == math.inf
    assert accounting.delta(plan, 0.0, epsilon=1.0) == 1.0
    assert spent(plan._replace(steps=0), 0.0) == 0.0
    if plan.sampling != "everyone":
        assert spent(plan._replace(sample=0), 0.0) == 0.0
        assert accounting.delta(plan._replace(sample=0), 0.0, epsilon=1.0) == 0.0


def test_the_order_of_accountants_and_samplers():
    everyone = PLAN._replace(sampling="everyone")
    all_drawn = spent(PLAN._replace(sample=1000), 20.0)
    assert all_drawn == pytest.approx(spent(everyone, 20.0), rel=1e-3)
    for z, rounds in ((1.0, 1000), (3.0, 10)):
        plan = PLAN._replace(steps=rounds)
        assert spent(plan, z, "pld") < spent(plan, z, "rdp")


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
        (PLAN._replace(population=0, sample=0), None, "population=0"),
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


def test_a_target_that_sampling_alone_keeps_is_refused_for_its_tails():
    plan = Plan(steps=1, sample=0.005, population=1000)
    with refused("noise_multiplier=0.000488 for epsilon=1.0"):
        accounting.calibrate(plan, epsilon=1.0, delta=1e-5)


def test_a_target_that_cut_cohorts_alone_exceed_is_refused():
    plan, promise = Plan(steps=20, sample=100, population=400), {"epsilon": 8.0}
    with refused("cohort's size", "epsilon=8.0", "20 cut cohorts alone"):
        accounting.calibrate(plan, delta=1e-14, **promise)
    everyone = plan._replace(sample=400, sampling="everyone")
    assert accounting.calibrate(everyone, delta=1e-14, **promise) < 10


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


def test_bad_promises_are_refused():
    for delta in (0.0, 1e-16, 1.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="delta="):
            spent(PLAN, 1.0, delta=delta)
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="epsilon="):
            accounting.calibrate(PLAN, epsilon=epsilon, delta=DELTA)
    for z in (-1.0, math.nan):
        with pytest.raises(ValueError, match="noise_multiplier="):
            spent(PLAN, z)
    with pytest.raises(ValueError, match="delta=0.001"):
        plans.require_delta(PLAN, 1e-3)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (8.00004, 4, "8.001"),
        (8.000000020033582, 4, "8.001"),
        (7.99999, 4, "8"),
        (8.0, 4, "8"),
        (0.014801, 3, "0.0149"),
        (99.991, 4, "100"),
        (0.0, 4, "0"),
        (math.inf, 4, "inf"),
    ],
)
def test_printed_numbers_are_rounded_up(value, digits, text):
    assert guarantee.rounded_up(value, digits) == text


@given(st.floats(1e-9, 1e9), st.integers(1, 9))
def test_a_printed_number_is_hardly_more_and_never_less(value, digits):
    printed = float(guarantee.rounded_up(value, digits))
    assert value <= printed <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-15)


def test_the_formulas_of_papers_are_as_printed():
    # k = 100 releases, each of (e, d) = (sqrt(2 log(1.25 / d)) / z, delta / (2 k)).
    plan = PLAN._replace(steps=100, sampling="everyone")
    z, each = 100.0, 0.0583685
    found = literature.advanced_composition(plan, z, delta=DELTA)
    expected = (200 * 12.206073) ** 0.5 * each + 200 * each**2
    assert found == pytest.approx(expected, rel=1e-3)
    assert found > spent(plan, z, "rdp")
    assert literature.advanced_composition(plan, 1.0, delta=DELTA) == math.inf
    for epsilon in (0.1, 5.0):
        asked = literature.advanced_noise_multiplier(plan, epsilon=epsilon, delta=DELTA)
        claim = literature.advanced_composition(plan, asked, delta=DELTA)
        assert claim == pytest.approx(epsilon)


def test_the_claim_for_a_sketch_without_noise_is_a_formula_and_no_credit():
    options = {"rows": 5, "length": 10**6, "sigma": 1.0, "bound": 1.0, "alpha": 3.0}
    claim = literature.count_sketch_claim(cols=20, **options)
    assert claim == pytest.approx(5 * 0.016746, rel=1e-3)
    with pytest.raises(ValueError, match="condition"):
        literature.count_sketch_claim(cols=1000, **options)
    # A plan has no place for a sketch.
    assert not any("sketch" in field for field in Plan._fields)


@pytest.mark.parametrize(
    "sampling", ["everyone", pytest.param("poisson", marks=pytest.mark.slow)]
)
def test_a_table_prints_every_number_rounded_up(sampling):
    plan = PLAN._replace(steps=3, sampling=sampling, **REPLACED)
    lines = literature.table(plan, epsilon=8.0, delta=DELTA)
    assert ("cohorts" in lines[0]) == (
        sampling == "poisson"
    )  # of everyone there is one
    name, z, epsilon = lines[2].split()
    assert name == "PLD" and epsilon == "8"
    least = accounting.calibrate(plan, epsilon=8.0, delta=DELTA)
    assert least <= float(z) <= 1.00001 * least
    assert lines[3].split()[0] == "RDP"
    assert ("not applicable" in lines[3]) == (sampling == "poisson")
