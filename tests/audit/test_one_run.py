"""Canaries in one run: the theorem is exact where it can be, and the run is the run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from fl_sketch import channels, engine, sketch
from fl_sketch.audit import one_run
from fl_sketch.core.protocols import Algorithm
from fl_sketch.privacy import accounting, clipping, mechanism
from fl_sketch.transforms import local
from tests.meshes import mesh_of

D, CLIENTS, CANARIES, ROUNDS, Z, DELTA = 4000, 8, 200, 6, 8.0, 1e-5
EACH = 20


def right_ones_of_randomised_response(epsilon, revealed=0.0, together=0.0, of=20):
    """Returns P[v or more of 20 guesses are right], for v from 0.

    Every coin comes out right with chance e^epsilon / (1 + e^epsilon); or it is
    revealed, or all are together.
    """
    honest = 1 / (1 + np.exp(-epsilon))
    chance = revealed + (1 - revealed) * honest
    tail = stats.binom.sf(np.arange(of + 1) - 1, of, chance)
    return together + (1 - together) * tail


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("delta", [0.0, 1e-4, 0.1])
def test_the_bound_is_that_of_randomised_response_and_allows_for_delta(epsilon, delta):
    found = [
        one_run.p_value(20, right, epsilon, canaries=20, delta=delta)
        for right in range(21)
    ]
    for exact in (
        right_ones_of_randomised_response(epsilon, revealed=delta),
        right_ones_of_randomised_response(epsilon, together=delta),
    ):
        assert (found >= exact - 1e-12).all()
        assert delta or found == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_bound_holds_as_often_as_it_says(epsilon):
    tail = right_ones_of_randomised_response(epsilon, of=100)
    chances = -np.diff(np.append(tail, 0))
    above = [
        one_run.lower_bound(100, right, canaries=100, delta=0.0) > epsilon
        for right in range(101)
    ]
    assert 0.01 < chances[above].sum() <= 0.05


def test_guesses_are_made_at_both_ends():
    scores = np.array([5.0, -1.0, 0.0, 4.0, -3.0, 1.0])
    coins = np.array([1.0, 1.0, -1.0, -1.0, -1.0, 1.0])
    assert one_run.right_guesses(scores, coins, 2) == 2  # of 5, 4, -3 and -1
    with pytest.raises(ValueError, match="each=4"):
        one_run.right_guesses(scores, coins, 4)


def private(noise_multiplier, uplink, sample):
    return Algorithm(
        local.one_gradient(lambda params, batch: jnp.sum((params - batch) ** 2)),
        uplink,
        optax.adam(0.1),
        mechanism.central(
            clipping.clip(0.5), noise_multiplier=noise_multiplier, denominator=sample
        ),
    )


WAYS = {
    "added, poisson": ("add_remove", "poisson"),
    "replaced, everyone": ("replace_one", "everyone"),
}


def guesses(noise_multiplier, relation, sampling, uplink=None):
    """Returns how many guesses are right in three runs."""
    people, data = CLIENTS + CANARIES, jnp.ones((CLIENTS, 1, D))
    sampler, sample = engine.everyone(people), people
    if sampling == "poisson":
        sampler, sample = engine.poisson(people, people / 2), people / 2
    run = one_run.program(
        private(noise_multiplier, uplink or channels.exact(), sample),
        lambda data, client, plan, key: data[client],
        sampler,
        mesh_of(2, "clients"),
        first=CLIENTS,
        count=CANARIES,
        away=relation == "add_remove",
        rounds=ROUNDS,
        chunk=4,
    )
    run, right = jax.jit(run), 0
    for seed in range(3):
        key = jax.random.key(seed)
        scores, coins = run(jnp.zeros(D), key, data, jax.random.key(100 + seed))
        right += one_run.right_guesses(np.asarray(scores), np.asarray(coins), EACH)
    plan = accounting.Plan(ROUNDS, sample, people, sampling, relation=relation)
    found = one_run.lower_bound(6 * EACH, right, canaries=3 * CANARIES, delta=DELTA)
    return found, accounting.epsilon(plan, Z, delta=DELTA)


@pytest.mark.parametrize("name", WAYS)
def test_a_true_claim_is_not_exceeded_and_a_false_one_is(name):
    found, claimed = guesses(Z, *WAYS[name])
    assert found <= claimed
    found, claimed = guesses(Z / 20, *WAYS[name])
    assert found > claimed


def test_canaries_are_heard_through_a_sketch():
    op = sketch.count_sketch(cols=D // 2)
    found, _ = guesses(Z / 20, *WAYS["replaced, everyone"], channels.sketched(op))
    assert found > 0.5


def test_a_run_with_canaries_that_are_all_away_is_the_run():
    algorithm = private(0.0, channels.exact(), CLIENTS)
    key, data = jax.random.key(3), jnp.arange(CLIENTS * D).reshape(CLIENTS, 1, D) / D
    loud = one_run.canaries_of(key, first=CLIENTS, count=4, away=True)
    loud = loud._replace(coins=-jnp.ones(4))

    def fetch(data, client, *plan_and_key):
        del plan_and_key
        return data[client]

    def params_after(algorithm, fetch, people, sampler):
        one_round = engine.make_round(algorithm, fetch, mesh_of(1, "clients"))
        state = engine.initial_state(algorithm, jnp.zeros(D), people)
        run = jax.jit(
            lambda s: engine.run_rounds(one_round, sampler, s, key, data, 3, most=3)
        )
        return run(state)[0].server.params

    plain = params_after(algorithm, fetch, CLIENTS, engine.everyone(CLIENTS))
    among = params_after(
        one_run.with_canaries(algorithm, loud),
        one_run.fetching(fetch, loud),
        CLIENTS + 4,
        one_run.sampling(engine.everyone(CLIENTS + 4), loud),
    )
    np.testing.assert_allclose(among, plain, rtol=1e-5, atol=1e-6)


def test_a_server_that_works_in_sketch_space_hears_no_updates():
    params, batches = jnp.zeros(D), jnp.zeros((1, D))
    op = sketch.fixed_key(sketch.count_sketch(cols=4, rows=5), jax.random.key(0))
    ways = {
        channels.sketched(op): True,
        channels.heaprix(op, k=3): True,
        channels.sketched(op, read="message"): False,
    }
    for uplink, hears in ways.items():
        algorithm = private(1.0, uplink, 4)
        assert one_run.hears_updates(algorithm, params, batches) == hears
