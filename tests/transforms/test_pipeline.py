"""sketch -> aggregate -> desketch inside somebody's own shard_map training step."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

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


@pytest.mark.parametrize("devices", [1, 8])
def test_identity_sketch_is_plain_data_parallel_training(devices):
    tx, plain = chained(sketch.identity(), optax.adam(0.1)), optax.adam(0.1)
    grads = some_grads(devices * CLIENTS)
    step = jax.jit(client_step(tx, devices))
    params, state = PARAMS, tx.init(PARAMS)
    expected, plain_state = PARAMS, plain.init(PARAMS)
    for number in range(3):
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


def programs_in(params):
    """Yields the programs that an operation plays, its loops' bodies say."""

    def is_one(leaf):
        return isinstance(leaf, Jaxpr | ClosedJaxpr)

    for leaf in filter(is_one, jax.tree.leaves(params, is_leaf=is_one)):
        yield leaf.jaxpr if isinstance(leaf, ClosedJaxpr) else leaf


def equations(jaxpr):
    """Yields all equations in order, those of inner jaxprs after their owner."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in programs_in(equation.params):
            yield from equations(inner)


def after_the_mean(step, *arguments):
    found = list(equations(jax.make_jaxpr(step)(*arguments).jaxpr))
    sums = [n for n, e in enumerate(found) if e.primitive.name.startswith("psum")]
    return found[: sums[0]], found[sums[-1] + 1 :], len(sums)


def test_what_follows_aggregate_is_computed_once_and_known_to_be_the_same():
    op = sketch.gaussian(11)
    tx = chained(op, optax.adam(0.1))
    arguments = some_grads(DEVICES * CLIENTS), tx.init(PARAMS), PARAMS, KEY
    before, after, sums = after_the_mean(client_step(tx), *arguments)
    assert sums == 1
    assert len(after) > 20

    def shapes(found):
        return [v.aval for equation in found for v in equation.outvars]

    assert any(CLIENTS in aval.shape for aval in shapes(before))
    assert not any(CLIENTS in aval.shape for aval in shapes(after))
    assert any("V:devices" in str(aval) for aval in shapes(before))
    assert not any("V:devices" in str(aval) for aval in shapes(after))


def test_a_message_that_goes_around_the_mean_is_refused():
    op = sketch.count_sketch(15)
    leaky = optax.chain(transforms.sketch(op), transforms.desketch(op), optax.sgd(1.0))
    arguments = some_grads(DEVICES * CLIENTS), leaky.init(PARAMS), PARAMS, KEY
    with pytest.raises(ValueError, match="out_axes|vmap"):
        jax.make_jaxpr(client_step(leaky))(*arguments)

    def one_client_a_device(grads, state, params, key):
        grad = jax.tree.map(lambda g: g[0], grads)
        updates, state = leaky.update(grad, state, params, key=key)
        return optax.apply_updates(params, updates), state

    step = jax.shard_map(
        one_client_a_device,
        mesh=mesh_of(DEVICES, "devices"),
        in_specs=(P("devices"), P(), P(), P()),
        out_specs=(P(), P()),
    )
    with pytest.raises(ValueError, match="replicat|out_specs"):
        jax.make_jaxpr(step)(*arguments)


def test_the_key_and_the_parameters_are_asked_for():
    op = sketch.count_sketch(15)
    tx = transforms.sketch(op)
    with pytest.raises(ValueError, match="key=key"):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    back = transforms.desketch(op)
    with pytest.raises(ValueError, match="params"):
        back.update(op.zeros(), back.init(PARAMS), key=KEY)
    with pytest.raises(ValueError, match="key=key"):
        back.update(op.zeros(), back.init(PARAMS), PARAMS)


def test_a_round_has_its_own_key_and_does_not_compile_again():
    op = sketch.count_sketch(15)
    tx = chained(op, optax.sgd(1.0))
    step = jax.jit(client_step(tx))
    grads = some_grads(DEVICES * CLIENTS)
    results = [
        step(grads, tx.init(PARAMS), PARAMS, jax.random.key(number))[0]["w"]
        for number in range(3)
    ]
    assert step._cache_size() == 1
    assert not np.array_equal(results[0], results[1])


class Classifier(nn.Module):
    """Digits, 8x8, in ten classes."""

    @nn.compact
    def __call__(self, images):
        return nn.Dense(10)(nn.relu(nn.Dense(128)(images)))


def test_a_flax_model_learns_from_twentyfold_sketches_on_four_devices():
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    params = Classifier().init(jax.random.key(0), images[:1])
    d = sum(p.size for p in jax.tree.leaves(params))
    op = sketch.count_sketch(cols=d // 20)
    assert op.size() * 20 <= d
    tx = chained(op, optax.adam(3e-3))

    def loss(params, images, labels):
        logits = Classifier().apply(params, images)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean()

    def on_one_device(params, state, images, labels, key):
        own = jax.lax.pcast(params, "devices", to="varying")
        grads = jax.grad(loss)(own, images, labels)
        updates, state = tx.update(grads, state, params, key=key)
        return optax.apply_updates(params, updates), state

    step = jax.jit(
        jax.shard_map(
            on_one_device,
            mesh=mesh_of(DEVICES, "devices"),
            in_specs=(P(), P(), P("devices"), P("devices"), P()),
            out_specs=(P(), P()),
        )
    )
    rng, state = np.random.default_rng(0), tx.init(params)
    for number in range(300):
        batch = rng.integers(0, 1500, 128)
        key = jax.random.fold_in(KEY, number)
        params, state = step(params, state, images[batch], labels[batch], key)
        jax.block_until_ready(params)  # queued collectives can deadlock on few cores
    logits = Classifier().apply(params, images[1500:])
    accuracy = np.mean(np.argmax(logits, axis=1) == labels[1500:])
    assert accuracy > 0.85  # 0.1 by guessing, 0.92 without a sketch
