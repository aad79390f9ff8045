"""sketch -> aggregate -> desketch inside a user's own shard_map training step."""

import chex
import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P

from fl_sketch import sketch, transforms
from tests.meshes import mesh_of

KEY = jax.random.key(0)
CLIENTS = 3  # on each device; no other size in these tests
PARAMS = {"w": jnp.zeros((10, 7)), "b": jnp.zeros(5)}
DEVICES = 4


def chained(op, *rest):
    return optax.chain(
        transforms.sketch(op),
        transforms.aggregate("devices"),
        transforms.desketch(op),
        *rest,
    )


def client_step(tx, devices=DEVICES, axis_name="devices"):
    """Returns a step over (devices * CLIENTS) gradients, CLIENTS of them a device."""

    def on_one_device(grads, state, params, key):
        def one_client(grad):
            updates, new_state = tx.update(grad, state, params, key=key)
            return optax.apply_updates(params, updates), new_state

        # out_axes=None: jax refuses what would differ from client to client.
        return jax.vmap(one_client, out_axes=None)(grads)

    return jax.shard_map(
        on_one_device,
        mesh=mesh_of(devices, "devices"),
        in_specs=(P(axis_name), P(), P(), P()),
        out_specs=(P(), P()),
    )


def some_grads(count):
    def grads(path, leaf):
        seed = sum(map(ord, jax.tree_util.keystr(path)))
        return jax.random.normal(jax.random.key(seed), (count, *leaf.shape))

    return jax.tree_util.tree_map_with_path(grads, PARAMS)


@pytest.mark.parametrize("devices", [1, DEVICES])
def test_identity_sketch_is_plain_data_parallel_training(devices):
    tx, plain = chained(sketch.identity(), optax.adam(0.1)), optax.adam(0.1)
    grads = some_grads(devices * CLIENTS)
    step = jax.jit(client_step(tx, devices))
    params, state = PARAMS, tx.init(PARAMS)
    expected, plain_state = PARAMS, plain.init(PARAMS)
    for number in range(2):
        params, state = step(grads, state, params, jax.random.key(number))
        mean = jax.tree.map(lambda g: g.mean(0), grads)
        updates, plain_state = plain.update(mean, plain_state)
        expected = optax.apply_updates(expected, updates)
    chex.assert_trees_all_close(params, expected, rtol=1e-4)


@pytest.mark.parametrize("layout", [lambda op: op, sketch.leaf_by_leaf])
def test_sketched_step_is_the_sketch_of_the_mean(layout):
    op = layout(sketch.count_sketch(15))
    tx = chained(op, optax.sgd(1.0))
    grads = some_grads(DEVICES * CLIENTS)
    params, _ = jax.jit(client_step(tx))(grads, tx.init(PARAMS), PARAMS, KEY)
    mean = jax.tree.map(lambda g: g.mean(0), grads)
    expected = op.transpose(KEY, op.apply(KEY, mean), PARAMS)
    expected = jax.tree.map(jnp.negative, expected)
    chex.assert_trees_all_close(params, expected, rtol=1e-4, atol=1e-5)


def test_a_message_that_goes_around_the_mean_is_refused():
    op = sketch.count_sketch(15)
    leaky = optax.chain(transforms.sketch(op), transforms.desketch(op), optax.sgd(1.0))
    arguments = some_grads(DEVICES * CLIENTS), leaky.init(PARAMS), PARAMS, KEY
    with pytest.raises(ValueError, match="out_axes|vmap"):
        jax.make_jaxpr(client_step(leaky))(*arguments)
