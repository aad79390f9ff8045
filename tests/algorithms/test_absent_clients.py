"""Servers that keep a mean over all clients have it whoever takes part."""

import chex
import jax
import optax
import pytest

from fl_sketch import engine
from tests.quadratics import CATALOGUE
from tests.simulation import simulate

SOME_OF_EIGHT = {
    "poisson": engine.poisson(8, 4),
    "dropout": engine.with_dropout(engine.fixed_size(8, 4), 0.4),
}
KEPT = {
    "ef21": lambda state: (state.clients.memory[0], state.server.memory[0]),
    "scaffold": lambda state: (state.clients.local, state.server.memory),
}


@pytest.mark.parametrize("sampler", SOME_OF_EIGHT)
@pytest.mark.parametrize("name", KEPT)
def test_the_server_has_the_mean_of_all_clients_when_some_take_part(name, sampler):
    state, _ = simulate(CATALOGUE[name], sampler=SOME_OF_EIGHT[sampler], clients=8)
    clients, server = KEPT[name](state)
    mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), clients)
    assert float(optax.tree.norm(mean)) > 0.1
    chex.assert_trees_all_close(mean, server, atol=1e-5)
