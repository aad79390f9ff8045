"""Under a mechanism memories follow what was counted, and not what a bound cut off."""

import chex
import jax
import jax.numpy as jnp
import pytest

from fl_sketch import algorithms
from fl_sketch.privacy import clipping, mechanism
from tests.privacy.noise import CLIENTS
from tests.quadratics import ALGORITHMS, PARAMS, STEPS, loss
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
