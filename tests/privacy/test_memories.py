"""Under a mechanism memories follow what arrived, and keep what a bound cut off."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import algorithms
from fl_sketch.core import trees
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.sketch import compressors
from tests.privacy.noise import CLIENTS
from tests.quadratics import ALGORITHMS, PARAMS, STEPS, loss, optima
from tests.simulation import simulate


def _mean_of(bank):
    return jax.tree.map(lambda leaf: leaf.mean(axis=0), bank)


def _variates_are_balanced(state):
    """What clients keep of gradient tracking adds up to nothing."""
    return _mean_of(state.clients.local), jax.tree.map(jnp.zeros_like, PARAMS)


def _server_has_the_mean(state):
    """EF21: the server's g is the mean of the clients'."""
    return _mean_of(state.clients.memory[0]), state.server.memory[0]


def _server_has_the_variate(state):
    """SCAFFOLD: the server's c is the mean of the clients'."""
    return _mean_of(state.clients.local), state.server.memory


@pytest.mark.parametrize(
    ("algorithm", "law", "bound"),
    [
        (algorithms.fedgate(loss, client_rate=0.1, server_rate=1.0, gain=3.3),
         _variates_are_balanced, clipping.clip),
        (ALGORITHMS["ef21"], _server_has_the_mean, clipping.normalise),
        (algorithms.scaffold(
            loss, client_rate=0.1, server_rate=1.0, steps=STEPS
        ), _server_has_the_variate, clipping.clip),
    ],
    ids=["fedgate", "ef21", "scaffold"],
)  # fmt: skip
def test_memories_follow_what_was_counted_and_not_what_was_cut(algorithm, law, bound):
    guard = mechanism.central(bound(0.3), noise_multiplier=0.0, denominator=CLIENTS)
    state, _ = simulate(algorithm._replace(mechanism=guard), rounds=5)
    kept, expected = law(state)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(state.clients))
    chex.assert_trees_all_close(kept, expected, atol=1e-5)


ROUNDS, WRONG = 9, 4


def nan_once(algorithm):
    """Client 2's update is not finite in round 4, and only then."""
    second = np.asarray(optima(CLIENTS)[2])

    def run(server, state, batches, keys):
        work = algorithm.local.run(server, state, batches, keys)
        mine = jnp.all(batches == second)
        bad = mine & (server.round == WRONG)
        update = jax.tree.map(lambda u: jnp.where(bad, jnp.nan, u), work.update)
        return work._replace(update=update)

    return algorithm._replace(local=algorithm.local._replace(run=run))


FORGETFUL = {
    "sketched_sgd": ALGORITHMS["sketched_sgd"],
    "onebit_adam": ALGORITHMS["onebit_adam"],
    "ef_sign_sgd": algorithms.ef_sign_sgd(loss, client_rate=0.1, server_rate=0.1),
    "ef21": ALGORITHMS["ef21"],
    "cocktail": algorithms.cocktail_sgd(
        loss, cocktail=compressors.top_k(4), client_rate=0.1, server_rate=0.1
    ),
    "gradient_tracking": ALGORITHMS["gradient_tracking"],
}


@pytest.mark.parametrize("name", FORGETFUL)
def test_a_client_that_was_not_finite_once_is_heard_again(name):
    guard = mechanism.central(
        clipping.clip(1.0), noise_multiplier=0.1, denominator=CLIENTS
    )
    algorithm = nan_once(FORGETFUL[name])._replace(mechanism=guard)
    state, report = simulate(algorithm, rounds=ROUNDS)
    rejected = np.asarray(report.simulator_only.diagnostics["mechanism_rejected"])
    assert rejected[WRONG] > 0
    assert not rejected[:WRONG].any() and not rejected[WRONG + 1 :].any()
    assert trees.finite((state.server.params, state.clients))
