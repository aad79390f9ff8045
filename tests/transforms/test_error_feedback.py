"""Error feedback forgets nothing."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from fl_sketch import sketch, transforms
from fl_sketch.core import trees
from fl_sketch.sketch import compressors
from tests.meshes import mesh_of

KEY = jax.random.key(0)
PARAMS = {"w": jnp.zeros((4, 5)), "b": jnp.zeros(4)}
OP = sketch.count_sketch(12)
SKETCHED = optax.chain(transforms.sketch(OP), transforms.desketch(OP))
INSIDE = {
    "top_k": transforms.compress(compressors.top_k(3)),
    "scaled_sign": transforms.compress(compressors.scaled_sign()),
    "shrunk sketch": optax.chain(SKETCHED, optax.scale(0.1)),
}


def some(number):
    return jax.tree.map(
        lambda p: jax.random.normal(jax.random.key(number), p.shape), PARAMS
    )


@pytest.mark.parametrize("name", INSIDE)
def test_what_was_sent_and_what_is_owed_add_up_to_the_updates(name):
    tx = transforms.error_feedback(INSIDE[name])
    state = tx.init(PARAMS)
    sent = given = jax.tree.map(jnp.zeros_like, PARAMS)
    update = jax.jit(lambda u, s, k: tx.update(u, s, PARAMS, key=k))
    for number in range(4):
        out, state = update(some(number), state, jax.random.fold_in(KEY, number))
        sent = optax.apply_updates(sent, out)
        given = optax.apply_updates(given, some(number))
    total = optax.apply_updates(sent, state.error)
    chex.assert_trees_all_close(total, given, atol=1e-4)
    if name == "top_k":
        changed = sum(int((leaf != 0).sum()) for leaf in jax.tree.leaves(out))
        assert changed == 3


def test_an_update_that_is_not_finite_leaves_the_error_as_it_was():
    tx = transforms.error_feedback(INSIDE["top_k"])
    _, state = tx.update(some(0), tx.init(PARAMS), PARAMS, key=KEY)
    bad = some(1) | {"b": jnp.array([1.0, jnp.nan, 0.0, 0.0])}
    sent, after = tx.update(bad, state, PARAMS, key=KEY)
    chex.assert_trees_all_equal(after.error, state.error)
    assert jnp.isnan(trees.ravel(sent)).any()


def test_memory_is_one_clients_own_inside_shard_map():
    tx = optax.chain(
        transforms.error_feedback(transforms.compress(compressors.top_k(2))),
        transforms.aggregate("devices"),
    )
    mesh = mesh_of(4, "devices")
    x = jax.random.normal(KEY, (4, 6))

    def on_one_device(x, memory):
        state = (jax.tree.map(lambda m: m[0], memory), optax.EmptyState())
        mean, (memory, _) = tx.update(x[0], state, x[0], key=KEY)
        return mean, jax.tree.map(lambda m: m[None], memory)

    single = tx.init(jnp.zeros(6))[0]
    memory = jax.tree.map(lambda m: jnp.broadcast_to(m, (4, *m.shape)), single)
    mean, memory = jax.jit(
        jax.shard_map(
            on_one_device,
            mesh=mesh,
            in_specs=(P("devices"), P("devices")),
            out_specs=(P(), P("devices")),
        )
    )(x, memory)
    kept = jnp.stack([compressors.top_k(2).apply(KEY, row) for row in x])
    np.testing.assert_allclose(mean, kept.mean(0), atol=1e-6)
    np.testing.assert_allclose(memory.error, x - kept, atol=1e-6)
