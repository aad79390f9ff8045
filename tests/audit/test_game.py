"""The game stays below a true claim, and rises above a false one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import engine
from fl_sketch.audit import canaries, game
from fl_sketch.core import chacha
from fl_sketch.core.protocols import Encoded, Release, Roots
from fl_sketch.privacy import accounting, clipping, mechanism

CLIENTS, C, Z, DELTA = 4, 2.0, 1.0, 1e-3
TRIALS = 2**17
KEY = Roots(jax.random.key(5), chacha.key_of(bytes(32)))
CLIP = clipping.clip(C)
SAMPLERS = {
    "everyone": lambda rate: engine.everyone(CLIENTS),
    "poisson": lambda rate: engine.poisson(CLIENTS, rate * CLIENTS),
}


def plan_of(rounds=1, rate=1.0, sampling="everyone", **options):
    return accounting.Plan(rounds, rate * CLIENTS, CLIENTS, sampling, **options)


def played(observe, plan, z=Z, trials=TRIALS, delta=DELTA, key=KEY, **options):
    """Returns what the game finds against the claim of a plan."""
    return game.play(
        observe,
        lambda delta: accounting.epsilon(plan, z, delta=delta),
        delta=delta,
        trials=trials,
        key=key,
        rate=plan.rate,
        **options,
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
    "the same cohort in every round": (CONFIG, {"same": True}),
}


@pytest.mark.slow
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


def seen(guard, sampling="everyone", *, rounds=1, exchanges=1, rate=1.0):
    near = canaries.neighbours(sampling, "add_remove")
    sizes = {"rounds": rounds, "exchanges": exchanges}
    return canaries.observer(
        canaries.pushing(near, limit=C, **sizes)._replace(mechanism=guard),
        SAMPLERS[sampling](rate),
        away=near.away,
        population=CLIENTS,
        **sizes,
    )


def central(noise_multiplier=Z, bound=CLIP, denominator=CLIENTS):
    return mechanism.central(
        bound, noise_multiplier=noise_multiplier, denominator=denominator
    )


@pytest.mark.slow
def test_a_true_claim_is_not_exceeded_and_nearly_reached():
    """Other samplings, relations and mechanisms are played of configs."""
    rate, z = 0.25, 1.712
    observe = seen(central(z, denominator=1), "poisson", rate=rate, rounds=2)
    result = played(observe, plan_of(2, rate, "poisson"), z, trials=TRIALS // 2)
    assert 0.7 * result.claimed_epsilon < result.found_epsilon
    assert not result.broken


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
        bounded = right.encode(*arguments)
        return Encoded((bounded.summand, jnp.float32(1)), bounded.rejected)

    def release(state, exchange, total, keys):
        total, count = total
        mean = right.release(state, exchange, total, keys).mean
        return Release(mean / jnp.maximum(count, 1), state, {})

    return right._replace(encode=bound, release=release)


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


# A mechanism with a mistake, and the rounds and exchanges that show it.
BUGS = {
    "what came as the denominator": (over_those_who_came(), 1, 1),
    "a clip to 1.1 C": (
        central(bound=CLIP._replace(apply=clipping.clip(1.1 * C).apply)),
        1,
        1,
    ),
    "one draw for all rounds": (one_draw_for_all_rounds(), 2, 1),
    "one draw for all exchanges": (one_draw_for_all_exchanges(), 1, 2),
    "a count without noise": (count_noise_forgotten(), 1, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_mistake_is_exposed(name):
    wrong, rounds, exchanges = BUGS[name]
    plan = plan_of(rounds, releases=exchanges)
    assert played(seen(wrong, rounds=rounds, exchanges=exchanges), plan).broken


def test_the_chances_are_those_of_clopper_and_pearson():
    low, high = game.clopper_pearson(np.array([0, 5, 10]), 10, 0.025)
    assert low == pytest.approx([0, 0.1871, 0.6915], abs=1e-4)
    assert high == pytest.approx([0.3085, 0.8129, 1], abs=1e-4)


def test_what_is_counted_did_not_choose_the_event_and_proves_no_more(monkeypatch):
    """Of worlds that differ in all runs both chances have bounds in closed form."""
    blocks = []

    def program(observe, key):
        del observe, key

        def run(number, present):
            blocks.append((number, present))
            return np.full((game.BLOCK, 1, 1), present)

        return run

    monkeypatch.setattr(game, "_program", program)
    found = game.play(None, lambda delta: 1.0, delta=0.1, trials=1, key=KEY)
    assert len({*blocks}) == len(blocks) == 2 * sum(game.PARTS)
    least = 0.025 ** (1 / (game.PARTS[-1] * game.BLOCK))  # of what was in all runs
    expected = np.log((least - 0.1) / (1 - least))
    assert found.found_epsilon == pytest.approx(expected) == found.most_epsilon


def test_a_release_that_is_no_number_is_refused():
    with pytest.raises(ArithmeticError, match="finite"):
        played(lambda key, present: jnp.full((1, 1), jnp.nan), plan_of(), trials=1)
