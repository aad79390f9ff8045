"""A part of a model trains: what it sends, what stays, and what a device holds."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from fl_sketch import algorithms, data
from fl_sketch.core import trees
from fl_sketch.core.trees import Stateful
from fl_sketch.run import simulate
from fl_sketch.transforms import local

KEY = jax.random.key(0)
COUNT, SIZE, CLASSES = 60, 12, 3
INPUTS = np.asarray(jax.random.normal(KEY, (COUNT, SIZE)))
LABELS = np.arange(COUNT) % CLASSES
BATCH = INPUTS[:10], LABELS[:10]


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES, name="head")(nn.tanh(nn.Dense(8, name="first")(x)))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(SIZE, 8, rngs=rngs)
        self.head = nnx.Linear(8, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.tanh(self.first(x)))


class Equinox(eqx.Module):
    first: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, key):
        self.first = eqx.nn.Linear(SIZE, 8, key=key)
        self.head = eqx.nn.Linear(8, CLASSES, key=key)

    def __call__(self, x):
        return self.head(jnp.tanh(self.first(x)))


def plain():
    first, head = jnp.full((SIZE, 8), 0.1), jnp.eye(8, CLASSES)
    params = {"first": {"w": first}, "head": {"w": head}}

    def logits(params, x):
        return jnp.tanh(x @ params["first"]["w"]) @ params["head"]["w"]

    return logits, params


def linen():
    model = Linen()
    return model.apply, model.init(KEY, INPUTS[:1])


def of_nnx():
    graph, params = nnx.split(Nnx(nnx.Rngs(0)))
    return lambda params, x: nnx.merge(graph, params)(x), params


def equinox():
    params, rest = eqx.partition(Equinox(KEY), eqx.is_inexact_array)
    return lambda params, x: jax.vmap(eqx.combine(params, rest))(x), params


KINDS = {"plain": plain, "linen": linen, "nnx": of_nnx, "equinox": equinox}
MODELS = {name: kind() for name, kind in KINDS.items()}


def loss_of(logits):
    return lambda params, batch: cross_entropy(logits(params, batch[0]), batch[1])


def parted(kind, trains):
    logits, params = MODELS[kind]
    return logits, params, *local.only(loss_of(logits), params, trains, key=KEY)


def same(one, two):
    return jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), one, two))


def names(tree):
    return [name for name, _ in trees.named_leaves(tree)]


def test_all_is_the_model_itself():
    loss, params = loss_of(MODELS["plain"][0]), MODELS["plain"][1]
    assert local.only(loss, params, "all")[:2] == (loss, params)


@pytest.mark.parametrize("trains", ["head", "lora(rank=2, on=first)", "first"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_part_begins_as_the_model_and_moves_alone(kind, trains):
    logits, params, loss, start, whole = parted(kind, trains)
    assert same(whole(start), params)
    np.testing.assert_allclose(loss(start, BATCH), loss_of(logits)(params, BATCH))
    gradient = jax.grad(loss)(start, BATCH)
    moved = jax.tree.map(lambda x, g: x - 0.5 * (g + 0.1), start, gradient)
    assert float(loss(moved, BATCH)) != float(loss(start, BATCH))
    layer = "head" if trains == "head" else "first"
    for (name, before), after in zip(
        trees.named_leaves(params), jax.tree.leaves(whole(moved)), strict=True
    ):
        trained = layer in name and ("lora" not in trains or after.ndim > 1)
        assert bool((before == after).all()) != trained, name


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_a_part_is_that_of_the_model_there(kind):
    logits, params, loss, start, _ = parted(kind, "head")
    found = dict(trees.named_leaves(jax.grad(loss)(start, BATCH)))
    expected = dict(trees.named_leaves(jax.grad(loss_of(logits))(params, BATCH)))
    assert {*found} == {name for name in expected if "head" in name}
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


def test_a_loss_that_draws_gets_its_key_and_statistics_stand_still():
    def loss(model, batch, key):
        noise = jax.random.normal(key)
        value = (model.params["head"] * batch + noise + model.state["mean"]).sum()
        return value, {"mean": model.state["mean"] + 1}

    model = Stateful({"head": jnp.ones(3), "rest": jnp.ones(2)}, {"mean": jnp.ones(())})
    of_part, start, whole = local.only(loss, model, "head")
    assert names(start) == ["params/head"]
    assert same(whole(start), model)
    algorithm = algorithms.fedavg(of_part, client_rate=0.1)
    clients = data.clients(np.ones((6, 3), "float32"), np.arange(6))
    run = simulate(algorithm, start, clients, key=KEY, rounds=2)
    end = whole(run.params)
    assert same(end.state, model.state) and same(end.params["rest"], jnp.ones(2))
    assert not same(end.params["head"], jnp.ones(3))


SHAPES = {"query": (32, 4, 8), "out": (4, 8, 32), "conv": (2, 2, 8, 32), "head": (8, 3)}
WHOLE = "query|out|conv"


@pytest.mark.parametrize(("alpha", "same_step"), [(32, True), (16, False)])
def test_lora_of_full_rank_takes_the_step_of_the_arrays_themselves(alpha, same_step):
    """Where alpha is the rank; derived in `lora`."""
    keys = jax.random.split(KEY, len(SHAPES))
    params = {
        name: jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys, SHAPES.items(), strict=True)
    }

    def loss(params, batch):
        return sum(jnp.sin(batch * leaf).sum() for leaf in params.values())

    def after_a_step(trains):
        of_part, start, whole = local.only(loss, params, trains, key=KEY)
        slopes = jax.grad(of_part)(start, 0.7)
        return whole(jax.tree.map(lambda x, g: x - 0.1 * g, start, slopes))

    adapted = after_a_step(f"lora(rank=32, alpha={alpha}, on={WHOLE})")
    expected = after_a_step(WHOLE)
    for name in SHAPES:
        close = np.allclose(adapted[name], expected[name], atol=1e-5)
        assert close == (same_step or name == "head"), name
