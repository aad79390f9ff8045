"""Models of NNX and Equinox, named by a config, train as those of Linen do."""

import runpy

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fl_sketch import models
from fl_sketch.core.trees import Stateful
from fl_sketch.models import adapters
from fl_sketch.run import load_params, run
from tests.run.configs import config_with

NETS = """
import equinox as eqx
import jax
from flax import nnx


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


def wrong(classes, rngs):
    return classes
"""
KINDS = {"nnx": "Net", "equinox": "Mlp"}


@pytest.fixture(scope="module")
def nets(tmp_path_factory):
    path = tmp_path_factory.mktemp("nets") / "nets.py"
    path.write_text(NETS)
    return path


def built(nets, kind):
    loss = models.classification(models.build(f"{nets}:{KINDS[kind]}", 10))
    params = loss.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
    return loss, params


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_varies_with_the_key_in_training_alone(nets, kind):
    loss, params = built(nets, kind)
    x = jax.random.normal(jax.random.key(1), (20, 8, 8, 1))
    y, keys = jnp.arange(20) % 10, [*map(jax.random.key, (1, 1, 2))]
    first = lambda found: found[0] if isinstance(params, Stateful) else found  # noqa: E731
    one, again, other = (float(first(loss.value(params, x, y, key=k))) for k in keys)
    assert loss.random and one == again != other
    sums = [loss.metrics(params, x, y)["loss"] for _ in range(2)]
    assert sums[0] == sums[1]


def test_outputs_are_those_of_the_model_itself(nets):
    _, params = built(nets, "nnx")
    assert isinstance(params, Stateful) and "batch_stats" in params.state
    net = models.build(f"{nets}:Net", 10)
    x = np.asarray(jax.random.normal(jax.random.key(1), (5, 8, 8, 1)))
    got = net.apply({"params": params.params, **params.state}, x)
    at = params.params
    hidden = x.reshape(5, -1) @ at["first.kernel"] + at["first.bias"]
    hidden = np.maximum(hidden / np.sqrt(1 + 1e-5), 0)  # statistics as they begin
    np.testing.assert_allclose(
        got, hidden @ at["last.kernel"] + at["last.bias"], atol=1e-4
    )


def test_trained_arrays_go_back_into_a_module_of_nnx(nets):
    """As docs/models/nnx.md has it."""
    _, params = built(nets, "nnx")
    net = models.build(f"{nets}:Net", 10)
    x = jax.random.normal(jax.random.key(1), (5, 8, 8, 1))
    arrays = jax.tree.map(lambda leaf: leaf + 0.1, params.params)
    expected = net.apply({"params": arrays, **params.state}, x)

    model = runpy.run_path(str(nets))["Net"](10, rngs=nnx.Rngs(7))
    places = nnx.to_flat_state(nnx.state(model, nnx.Param))
    found = [
        (path, old.replace(arrays[".".join(map(str, path))])) for path, old in places
    ]
    nnx.update(model, nnx.from_flat_state(found))
    model.eval()
    np.testing.assert_allclose(model(x), expected, rtol=1e-5)


def test_an_equinox_model_is_given_back(nets):
    loss, params = built(nets, "equinox")
    assert {*params} == {"first.weight", "first.bias", "last.weight", "last.bias"}
    model = eqx.nn.MLP(64, 10, width_size=8, depth=1, key=jax.random.key(3))
    wrapped = adapters.OfEquinox(lambda classes, key: model, 10)
    x = jnp.ones((2, 64))
    variables = wrapped.init(jax.random.key(0), x)
    np.testing.assert_allclose(wrapped.apply(variables, x), jax.vmap(model)(x))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_config_trains_and_resumes_it(nets, tmp_path, kind):
    name = f"{nets}:{KINDS[kind]}"
    config = config_with(rounds=30, eval_every=15, client__rate=0.3, model__name=name)
    summary = run(config, tmp_path, say=lambda line: None)
    assert summary["test_accuracy"] > 0.2
    assert jax.tree.leaves(load_params(tmp_path))
    again = run(config, tmp_path, say=lambda line: None)
    assert again["test_accuracy"] == summary["test_accuracy"]


def test_a_function_that_returns_something_else_is_refused(nets):
    with pytest.raises(TypeError, match="nnx.Module"):
        loss = models.classification(models.build(f"{nets}:wrong", 10))
        loss.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
