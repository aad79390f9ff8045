"""Every model: exact parameter counts, logits of the right shape, repeatable starts."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import models
from tests.channels.rounds import quickly

# name: (options, shape of an input, parameters for ten classes)
MODELS = {
    "logistic": ({}, (28, 28, 1), 7_850),
    "mlp": ({"hidden": (32, 16)}, (8, 8, 1), 64 * 32 + 32 + 32 * 16 + 16 + 170),
    "lenet": ({}, (28, 28, 1), 61_706),
    "cnn": ({}, (32, 32, 3), 1_626_442),
    "resnet": ({"blocks": 1, "width": 8}, (16, 16, 3), 19_218),
}
KEY = jax.random.key(0)
every_model = pytest.mark.parametrize("name", MODELS)


@functools.cache
def made(name):
    """Returns (model, a batch of inputs, initial parameters)."""
    options, shape, _ = MODELS[name]
    model = models.build(name, 10, **options)
    inputs = np.random.default_rng(1).normal(size=(2, *shape)).astype(np.float32)
    return model, inputs, start(name)(KEY, inputs)


@functools.cache
def start(name):
    """Returns the function that makes the parameters, compiled."""
    options, *_ = MODELS[name]
    return quickly(models.classification(models.build(name, 10, **options)).init)


def shapes_of(model, shape):
    """Returns the shapes of the parameters, without computing any."""
    variables = jax.eval_shape(model.init, KEY, jnp.zeros((1, *shape)))
    return jax.tree.map(lambda leaf: leaf.shape, variables["params"])


def count(shapes):
    leaves = jax.tree.leaves(shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
    return sum(map(math.prod, leaves))


@every_model
def test_the_number_of_parameters_is_exact(name):
    options, shape, expected = MODELS[name]
    assert count(shapes_of(models.build(name, 10, **options), shape)) == expected


def test_the_default_resnet_has_twenty_layers_and_269_722_parameters():
    assert count(shapes_of(models.resnet(10), (32, 32, 3))) == 269_722


@every_model
def test_logits_are_finite_and_so_are_gradients(name):
    model, inputs, params = made(name)
    loss = models.classification(model)

    @quickly
    def both(params, inputs):
        logits = model.apply({"params": params}, inputs)
        return logits, jax.grad(loss.value)(params, inputs, jnp.array([3, 9]))

    logits, gradient = both(params, inputs)
    assert logits.shape == (2, 10) and logits.dtype == jnp.float32
    for leaf in jax.tree.leaves((params, logits, gradient)):
        assert np.isfinite(leaf).all()
    assert jax.tree.map(jnp.shape, gradient) == jax.tree.map(jnp.shape, params)


@every_model
def test_one_seed_gives_one_start(name):
    _, inputs, params = made(name)
    again, other = (start(name)(key, inputs) for key in (KEY, jax.random.key(7)))
    jax.tree.map(np.testing.assert_array_equal, params, again)
    if name != "logistic":  # which starts from zero
        assert any(
            (a != b).any()
            for a, b in zip(
                jax.tree.leaves(params), jax.tree.leaves(other), strict=True
            )
        )


def test_the_convolutional_models_equal_flax_on_the_same_parameters():
    model, inputs, params = made("lenet")

    def pool(x):
        return nn.max_pool(x, (2, 2), (2, 2))

    @quickly
    def both(params, inputs):
        layer = {name: {"params": params[name]} for name in params}
        x = pool(nn.relu(nn.Conv(6, (5, 5)).apply(layer["conv1"], inputs)))
        x = nn.Conv(16, (5, 5), padding="VALID").apply(layer["conv2"], x)
        x = pool(nn.relu(x)).reshape(2, -1)
        x = nn.relu(nn.Dense(120).apply(layer["dense1"], x))
        x = nn.relu(nn.Dense(84).apply(layer["dense2"], x))
        expected = nn.Dense(10).apply(layer["dense3"], x)
        return model.apply({"params": params}, inputs), expected

    np.testing.assert_allclose(*both(params, inputs), atol=1e-5)


def test_the_layers_of_the_cnn_have_their_usual_shapes():
    shapes = shapes_of(models.cnn(10), (32, 32, 3))
    assert shapes["conv1"] == {"kernel": (3, 3, 3, 32), "bias": (32,)}
    assert shapes["conv2"] == {"kernel": (3, 3, 32, 64), "bias": (64,)}
    assert shapes["dense1"] == {"kernel": (12_544, 128), "bias": (128,)}


@pytest.mark.parametrize("width", [3, 12, 24])
def test_a_resnet_of_any_width_normalises(width):
    model = models.resnet(10, width=width, blocks=1)
    shapes = shapes_of(model, (16, 16, 3))
    assert shapes["stage3_block1"]["conv2"]["kernel"] == (3, 3, 4 * width, 4 * width)


def test_the_logistic_model_is_a_dense_layer_stored_by_class():
    model, images = models.logistic(3), jax.random.normal(KEY, (5, 2, 2, 1))
    kernel, bias = jax.random.normal(KEY, (3, 4)), jnp.arange(3.0)
    logits = model.apply(
        {"params": {"dense": {"kernel": kernel, "bias": bias}}}, images
    )
    expected = images.reshape(5, 4) @ kernel.T + bias
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "inputs", "error", "words"),
    [
        (models.lenet(10), jnp.zeros((2, 784)), ValueError, r"images.*\(2, 784\)"),
        (models.cnn(10), jnp.zeros((32, 32, 3)), ValueError, r"\(32, 32, 3\)"),
        (models.lenet(10), jnp.zeros((2, 8, 8, 1)), ValueError, "5x5.*got 4x4"),
        (models.logistic(10), jnp.zeros(5), ValueError, r"got shape \(5,\)"),
        (models.mlp(10), jnp.zeros((2, 5), jnp.uint8), TypeError, "uint8"),
        (models.cnn(10), jnp.zeros((1, 32, 32, 3), int), TypeError, "int32"),
    ],
)
def test_inputs_that_do_not_fit_get_one_line(model, inputs, error, words):
    with pytest.raises(error, match=words) as caught:
        model.init(KEY, inputs)
    assert "\n" not in str(caught.value)
