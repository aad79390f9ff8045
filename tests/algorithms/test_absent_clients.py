"""Servers that keep a mean over all clients have it whoever takes part."""

import chex
import jax
import optax
import pytest

from fl_sketch import algorithms, engine
from fl_sketch.sketch import compressors
from tests.quadratics import RATE, STEPS, loss
from tests.simulation import simulate

SOME_OF_EIGHT = {
    "fixed": engine.fixed_size(8, 4),
    "poisson": engine.poisson(8, 4),
    "dropout": engine.with_dropout(engine.fixed_size(8, 4), 0.4),
}


@pytest.mark.parametrize("sampler", SOME_OF_EIGHT)
def test_ef21_has_the_mean_of_all_clients_when_some_take_part(sampler):
    algorithm = algorithms.ef21(
        loss, compressor=compressors.top_k(4), server=optax.sgd(0.1)
    )
    state, _ = simulate(algorithm, sampler=SOME_OF_EIGHT[sampler], clients=8)
    kept = jax.tree.map(lambda leaf: leaf.mean(axis=0), state.clients.memory[0])
    chex.assert_trees_all_close(kept, state.server.memory[0], atol=1e-5)


@pytest.mark.parametrize("sampler", SOME_OF_EIGHT)
def test_scaffold_has_the_mean_of_all_variates_when_some_take_part(sampler):
    algorithm = algorithms.scaffold(
        loss, client_rate=RATE, server_rate=1.0, steps=STEPS
    )
    state, _ = simulate(algorithm, sampler=SOME_OF_EIGHT[sampler], clients=8)
    kept = jax.tree.map(lambda leaf: leaf.mean(axis=0), state.clients.local)
    assert float(optax.tree.norm(kept)) > 0.1
    chex.assert_trees_all_close(kept, state.server.memory, atol=1e-5)
