"""Models of NNX and Equinox, named by a config, train as those of Linen do."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fl_sketch import models
from fl_sketch.core.trees import Stateful
from fl_sketch.models import adapters


class Net(nnx.Module):
    def __init__(self, classes, rngs):
        self.first = nnx.Linear(64, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(8, classes, rngs=rngs)

    def __call__(self, x):
        x = self.norm(self.first(x.reshape(len(x), -1)))
        return self.last(self.drop(nnx.relu(x)))


class Mlp(eqx.Module):
    first: eqx.nn.Linear
    drop: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, classes, key):
        one, two = jax.random.split(key)
        self.first = eqx.nn.Linear(64, 8, key=one)
        self.drop = eqx.nn.Dropout(0.5)
        self.last = eqx.nn.Linear(8, classes, key=two)

    def __call__(self, x, key=None):
        return self.last(self.drop(jax.nn.relu(self.first(x.ravel())), key=key))


KINDS = ("Net", "Mlp")


def built(name):
    loss = models.classification(models.build(f"{__file__}:{name}", 10))
    return loss, loss.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_dropout_varies_with_the_key_in_training_alone(kind):
    loss, params = built(kind)
    x = jax.random.normal(jax.random.key(1), (20, 8, 8, 1))
    y, keys = jnp.arange(20) % 10, [*map(jax.random.key, (1, 1, 2))]
    first = lambda found: found[0] if isinstance(params, Stateful) else found  # noqa: E731
    one, again, other = (float(first(loss.value(params, x, y, key=k))) for k in keys)
    assert loss.random and one == again != other
    sums = [loss.metrics(params, x, y)["loss"] for _ in range(2)]
    assert sums[0] == sums[1]
    if kind == "Net":  # its statistics move
        moved = jax.tree.leaves(loss.value(params, x, y, key=keys[0])[1])
        pairs = zip(moved, jax.tree.leaves(params.state), strict=True)
        assert all(np.any(one != other) for one, other in pairs)


def test_trained_arrays_go_back_into_a_module_of_nnx():
    """As docs/models/nnx.md has it."""
    _, params = built("Net")
    assert isinstance(params, Stateful) and "batch_stats" in params.state
    net = models.build(f"{__file__}:Net", 10)
    x = jax.random.normal(jax.random.key(1), (5, 8, 8, 1))
    arrays = jax.tree.map(lambda leaf: leaf + 0.1, params.params)
    expected = net.apply({"params": arrays, **params.state}, x)

    model = Net(10, rngs=nnx.Rngs(7))
    places = nnx.to_flat_state(nnx.state(model, nnx.Param))
    found = [
        (path, old.replace(arrays[".".join(map(str, path))])) for path, old in places
    ]
    nnx.update(model, nnx.from_flat_state(found))
    model.eval()
    np.testing.assert_allclose(model(x), expected, rtol=1e-5)


def test_an_equinox_model_is_given_back():
    _, params = built("Mlp")
    assert {*params} == {"first.weight", "first.bias", "last.weight", "last.bias"}
    model = eqx.nn.MLP(64, 10, width_size=8, depth=1, key=jax.random.key(3))
    wrapped = adapters.OfEquinox(lambda classes, key: model, 10)
    x = jnp.ones((2, 64))
    variables = wrapped.init(jax.random.key(0), x)
    np.testing.assert_allclose(wrapped.apply(variables, x), jax.vmap(model)(x))
