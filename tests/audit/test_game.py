"""The game stays below a true claim, and rises above a false one.

What it costs is to compile it for a mechanism, noise included. A correct mechanism is
played once, and true and false claims are both held against that.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import engine
from fl_sketch.audit import canaries, game
from fl_sketch.core import chacha
from fl_sketch.core.protocols import Bounded, Release, Roots
from fl_sketch.engine import cohort
from fl_sketch.privacy import accounting, clipping, mechanism

CLIENTS, C, Z, DELTA = 4, 2.0, 1.0, 1e-3
TRIALS = 2**17
KEY = Roots(jax.random.key(5), chacha.key_of(bytes(32)))
CLIP = clipping.clip(C)
SAMPLERS = {
    "everyone": lambda rate: engine.everyone(CLIENTS),
    "fixed": lambda rate: engine.fixed_size(CLIENTS, round(rate * CLIENTS)),
    "poisson": lambda rate: engine.poisson(CLIENTS, rate * CLIENTS),
}


def plan_of(rounds=1, rate=1.0, sampling="everyone", **options):
    plan = accounting.Plan(rounds, CLIENTS, CLIENTS, sampling)._replace(**options)
    sample = rate * CLIENTS if sampling == "poisson" else round(rate * CLIENTS)
    return plan._replace(sample=sample)


def played(observe, plan, z=Z, trials=TRIALS, delta=DELTA):
    """Returns what the game finds against the claim of a plan."""
    return game.play(
        observe,
        lambda delta: accounting.spent(plan, z, delta=delta),
        delta=delta,
        trials=trials,
        key=KEY,
        rate=plan.rate,
        mirrored=canaries.neighbours(plan.sampling, plan.relation).mirrored,
    )


def draws(plan, z=Z, longer=1.0, same=False):
    """Returns what is seen of Gaussian releases, without the engine."""

    def observe(key, present):
        noise_key, cohort_key = jax.random.split(key.public)
        shape = (1 if same else plan.steps, 1)
        takes_part = jax.random.uniform(cohort_key, shape) < plan.rate
        noise = z * jax.random.normal(noise_key, (plan.steps, 1))
        away = -1.0 if plan.relation == "replace_one" else 0.0
        return noise + longer * jnp.where(present > 0, 1.0, away) * takes_part

    return observe


CONFIG = plan_of(3, 0.25, "poisson")  # what `launch.audit` plays of private_safl
FAULTS = {
    "a bound that is a tenth too long": (CONFIG, {"longer": 1.1}),
    "a bound that is a tenth too long, replaced": (
        CONFIG._replace(relation="replace_one"),
        {"longer": 1.1},
    ),
    "the same cohort in every round": (CONFIG, {"same": True}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_small_faults_are_exposed_and_no_correct_mechanism(name):
    plan, fault = FAULTS[name]
    z = 1.712 * plan.sensitivity
    options = {"z": z, "trials": 2**19, "delta": 1e-5}
    correct = played(draws(plan, z), plan, **options)
    assert 0.8 * correct.claimed_epsilon < correct.found_epsilon
    assert not correct.broken
    wrong = played(draws(plan, z, **fault), plan, **options)
    assert wrong.found_epsilon > 1.03 * wrong.claimed_epsilon
    assert wrong.delta >= 1e-5


def test_no_claim_of_exact_gaussians_is_broken():
    """Whose claims are as tight as can be, with as much confidence as is said."""
    plan = plan_of(2)
    wrong = 0
    for seed in range(5):
        key = KEY._replace(public=jax.random.key(seed))
        result = game.play(
            draws(plan),
            lambda delta: accounting.spent(plan, Z, delta=delta),
            delta=DELTA,
            trials=2**15,
            key=key,
        )
        assert result.found_epsilon > 0.8 * result.claimed_epsilon
        wrong += result.broken
    assert wrong == 0


def test_both_chances_may_fail_so_each_has_half_of_the_rest():
    """What is at most proved, by hand."""
    plan, confidence = plan_of(), 0.9
    result = game.play(
        draws(plan),
        lambda delta: accounting.spent(plan, Z, delta=delta),
        delta=DELTA,
        trials=1,
        key=KEY,
        confidence=confidence,
    )
    assert result.trials == 8 * game.BLOCK and result.confidence == confidence
    counted = 5 * game.BLOCK
    low = ((1 - confidence) / 2) ** (1 / counted)
    most = math.log((low - result.delta) / (1 - low))
    assert result.most_epsilon == pytest.approx(most, abs=1e-6)


def seen(
    guard,
    sampling="everyone",
    relation="add_remove",
    *,
    rounds=1,
    exchanges=1,
    rate=1.0,
    limit=C,
):
    near = canaries.neighbours(sampling, relation)
    return canaries.observer(
        canaries.shouting(near, exchanges=exchanges, limit=limit),
        canaries.exchanges(exchanges),
        guard,
        SAMPLERS[sampling](rate),
        away=near.away,
        population=CLIENTS,
        rounds=rounds,
        shape=(exchanges, canaries.NUMBERS),
    )


def central(noise_multiplier=Z, bound=CLIP, denominator=CLIENTS):
    return mechanism.central(
        bound, noise_multiplier=noise_multiplier, denominator=denominator
    )


@functools.cache
def honest(rounds=1, exchanges=1):
    """Returns what a correct mechanism gives away, beside its true claim."""
    plan = plan_of(rounds, releases=exchanges)
    return played(seen(central(), rounds=rounds, exchanges=exchanges), plan)


# What is known of fixed sizes is a bound by moments, which is not tight.
HONEST = {
    "everyone": ("everyone", "add_remove", 1.0, Z, 0.85),
    "everyone, replaced": ("everyone", "replace_one", 1.0, 3.0, 0.85),
    "poisson": ("poisson", "add_remove", 0.25, 1.712, 0.7),
    "poisson, replaced": ("poisson", "replace_one", 0.25, 3.0, 0.7),
    "fixed, replaced": ("fixed", "replace_one", 0.25, 3.0, 0.3),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name != "everyone"))
        for name in HONEST
    ],
)
def test_a_true_claim_is_not_exceeded_and_nearly_reached(name):
    sampling, relation, rate, z, part = HONEST[name]
    if name == "everyone":
        result = honest(rounds=2)
    else:
        guard = central(z, denominator=rate * CLIENTS)
        observe = seen(guard, sampling, relation, rate=rate, rounds=2)
        plan = plan_of(2, rate, sampling, relation=relation)
        result = played(observe, plan, z)
    assert part * result.claimed_epsilon < result.found_epsilon
    assert not result.broken


@pytest.mark.slow
def test_noise_by_every_client_is_as_good():
    guard = mechanism.distributed(
        CLIP, noise_multiplier=2.0, denominator=CLIENTS, smallest=CLIENTS
    )
    plan = plan_of(relation="replace_one", shares=CLIENTS)
    result = played(seen(guard, relation="replace_one"), plan, 2.0)
    assert 0.8 < result.found_epsilon / result.claimed_epsilon <= 1


@pytest.mark.slow
def test_a_threshold_that_adapts_is_paid_for():
    guard = mechanism.adaptive(
        C, noise_multiplier=Z, denominator=CLIENTS, count_noise=1.0
    )
    plan = plan_of(2, coordinates=canaries.NUMBERS + 1)
    result = played(seen(guard, rounds=2), plan)
    assert 0.8 < result.found_epsilon / result.claimed_epsilon <= 1


def count_noise_forgotten():
    right = mechanism.adaptive(
        C, noise_multiplier=Z, denominator=CLIENTS, count_noise=1.0
    )

    def release(state, exchange, total, keys):
        following = state * jnp.exp(-0.2 * (total[1] / CLIENTS))
        return right.release(state, exchange, total, keys)._replace(state=following)

    return right._replace(release=release)


def over_those_who_came():
    right = central(denominator=1)

    def bound(*arguments):
        bounded = right.bound(*arguments)
        return Bounded((bounded.summand, jnp.float32(1)), bounded.rejected)

    def release(state, exchange, total, keys):
        total, count = total
        mean = right.release(state, exchange, total, keys).mean
        return Release(mean / jnp.maximum(count, 1), state, {})

    return right._replace(bound=bound, release=release)


def clipped_after_the_sum():
    right = central()

    def bound(state, exchange, message, keys):
        del state, exchange, keys
        return Bounded(message, jnp.float32(0))

    def release(state, exchange, total, keys):
        return right.release(state, exchange, CLIP.apply(total), keys)

    return right._replace(bound=bound, release=release)


def one_draw_for_all_rounds():
    right = central()

    def release(state, exchange, total, keys):
        first, drawn = state
        fresh = right.release((), exchange, jnp.zeros_like(total), keys).mean
        noise = jnp.where(drawn > 0, first, fresh)
        return Release(total / CLIENTS + noise, (noise, jnp.float32(1)), {})

    def init():
        return jnp.zeros(canaries.NUMBERS), jnp.float32(0)

    return right._replace(init=init, release=release)


def one_draw_for_all_exchanges():
    right = central()

    def release(state, exchange, total, keys):
        del exchange
        return right.release(state, 0, total, keys)

    return right._replace(release=release)


def one_draw_for_all_numbers():
    right = central()

    def release(state, exchange, total, keys):
        noise = right.release(state, exchange, jnp.zeros(1), keys).mean
        return Release(total / CLIENTS + noise, state, {})

    return right._replace(release=release)


# A mechanism with a mistake, and the rounds and exchanges that show it.
BUGS = {
    "what came as the denominator": (over_those_who_came(), 1, 1),
    "a clip after the sum": (clipped_after_the_sum(), 1, 1),
    "a clip to 1.1 C": (
        central(bound=CLIP._replace(apply=clipping.clip(1.1 * C).apply)),
        1,
        1,
    ),
    "half the noise": (central(Z / 2), 1, 1),
    "one draw for all rounds": (one_draw_for_all_rounds(), 2, 1),
    "one draw for all exchanges": (one_draw_for_all_exchanges(), 1, 2),
    "one draw for all numbers": (one_draw_for_all_numbers(), 1, 1),
    "a count without noise": (count_noise_forgotten(), 1, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_mistake_is_exposed(name):
    wrong, rounds, exchanges = BUGS[name]
    plan = plan_of(rounds, releases=exchanges)
    assert played(seen(wrong, rounds=rounds, exchanges=exchanges), plan).broken


@pytest.mark.slow
def test_a_forgotten_release_is_exposed():
    assert not honest(exchanges=2).broken
    assert played(seen(central(), exchanges=2), plan_of(releases=1)).broken


@pytest.mark.slow
def test_a_cohort_that_stays_is_exposed(monkeypatch):
    """In the engine, of which everything else is right."""
    plan = plan_of(3, 0.25, "poisson")
    guard, of_round = central(denominator=1), cohort.cohort_key
    observe = seen(guard, "poisson", rate=0.25, rounds=3)
    assert not played(observe, plan).broken
    monkeypatch.setattr(cohort, "cohort_key", lambda key, number: of_round(key, 0))
    wrong = played(seen(guard, "poisson", rate=0.25, rounds=3), plan)
    assert wrong.found_epsilon > 1.2 * wrong.claimed_epsilon


@pytest.mark.slow
def test_points_of_a_sweep_that_share_their_noise_are_exposed():
    """Two runs of one seed, of C and of 2C, whose canaries point against each other."""
    one, two = seen(central()), seen(central(bound=clipping.clip(2 * C)), limit=-2 * C)

    def points(shared):
        def observe(key, present):
            own = key._replace(secret=jax.random.fold_in(key.secret, 1))
            both = one(key, present), two(key if shared else own, present)
            return jnp.concatenate(both, axis=1)

        return observe

    plan = plan_of(2)
    assert not played(points(shared=False), plan).broken
    assert played(points(shared=True), plan).broken


@pytest.mark.parametrize("shift", [0.8, 1.0, 2.0])
def test_the_bound_is_below_what_is_known_of_two_gaussians(shift):
    rng = np.random.default_rng(1)
    plan = accounting.Plan(1, 1, 1, "everyone")
    truth = accounting.epsilon(plan, 1 / shift, delta=0.1)
    bounds = [
        game.lower_bound(
            rng.normal(size=3000), shift + rng.normal(size=3000), delta=0.1
        )
        for _ in range(20)
    ]
    assert max(bounds) < truth
    assert min(bounds) > 0.3 * truth


def test_the_chances_are_those_of_clopper_and_pearson():
    low, high = game.clopper_pearson(np.array([0, 5, 10]), 10, 0.025)
    assert low == pytest.approx([0, 0.1871, 0.6915], abs=1e-4)
    assert high == pytest.approx([0.3085, 0.8129, 1], abs=1e-4)


def test_a_release_that_is_no_number_is_refused():
    with pytest.raises(ArithmeticError, match="finite"):
        played(lambda key, present: jnp.full((1, 1), jnp.nan), plan_of(), trials=1)
