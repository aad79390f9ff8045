"""Error feedback forgets nothing."""

import functools

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
from tests.refusals import refused

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


def test_a_message_instead_of_an_update_is_refused():
    tx = transforms.error_feedback(transforms.sketch(sketch.count_sketch(4)))
    with refused("error feedback needs"):
        tx.update(some(0), tx.init(PARAMS), PARAMS, key=KEY)


def test_a_sketch_as_long_as_the_update_may_be_fed_back():
    op = sketch.identity()
    tx = transforms.error_feedback(
        optax.chain(transforms.sketch(op), transforms.desketch(op))
    )
    sent, state = tx.update(some(0), tx.init(PARAMS), PARAMS, key=KEY)
    chex.assert_trees_all_close(sent, some(0))
    assert not trees.ravel(state.error).any()


def test_an_update_that_is_not_finite_leaves_the_error_as_it_was():
    tx = transforms.error_feedback(INSIDE["top_k"])
    _, state = tx.update(some(0), tx.init(PARAMS), PARAMS, key=KEY)
    bad = some(1) | {"b": jnp.array([1.0, jnp.nan, 0.0, 0.0])}
    sent, after = tx.update(bad, state, PARAMS, key=KEY)
    chex.assert_trees_all_equal(after.error, state.error)
    assert jnp.isnan(trees.ravel(sent)).any()


def test_top_k_with_feedback_reaches_what_top_k_alone_cannot():
    # Ten coordinates far from zero take turns under k = 1 and hide two small ones.
    target = jnp.concatenate([jnp.full(10, 5.0), jnp.full(2, 0.1)])
    alone = transforms.compress(compressors.top_k(1))

    @functools.partial(jax.jit, static_argnums=0)
    def descend(tx):
        drift = jnp.zeros(12).at[:10].set(jnp.array([1.0, -1.0] * 5))

        def one(number, carry):
            x, state = carry
            grad = x - target + drift * (-1.0) ** number  # noise that averages out
            step, state = tx.update(0.05 * grad, state, x, key=KEY)
            return x - step, state

        return jax.lax.fori_loop(0, 400, one, (jnp.zeros(12), tx.init(target)))[0]

    assert float(descend(alone)[11]) == 0.0
    assert float(descend(transforms.error_feedback(alone))[11]) > 0.05


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
