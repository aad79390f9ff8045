"""Every model: exact parameter counts, logits of the right shape."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import models
from fl_sketch.models.layers import NORMS
from fl_sketch.models.resnets import Bottleneck
from tests.channels.rounds import quickly
from tests.refusals import refused

KEY = jax.random.key(0)
IMAGES = (32, 32, 3)
# name: (options, shape of an input, parameters for ten classes)
MODELS = {
    "logistic": ({}, (28, 28, 1), 7_850),
    "mlp": ({"hidden": (32, 16)}, (8, 8, 1), 64 * 32 + 32 + 32 * 16 + 16 + 170),
    "lenet": ({}, (28, 28, 1), 61_706),
    "sigmoid_lenet": ({}, (28, 28, 1), 13_426),
    "cnn": ({"width": 4}, (16, 16, 3), 5_202),
    "resnet": ({"blocks": 1, "width": 8}, (16, 16, 3), 19_218),
    "vit": ({"depth": 1, "width": 8}, (8, 8, 3), 1_402),
}
LARGE = {
    ("cnn", "small"): 1_626_442,
    ("resnet", "small"): 269_722,
    ("resnet", "tiny"): 75_290,
    ("resnet", "paper"): 42_512_970,
    ("vit", "small"): 207_946,
    ("vit", "paper"): 85_150_474,
}


@functools.cache
def made(name):
    """Returns (model, a batch of inputs, random parameters)."""
    options, shape, _ = MODELS[name]
    model = models.build(name, 10, **options)
    normal = np.random.default_rng(1).normal
    params = jax.tree.map(
        lambda leaf: 0.1 * normal(size=leaf.shape).astype(np.float32),
        shapes_of(model, shape),
    )
    return model, normal(size=(2, *shape)).astype(np.float32), params


def shapes_of(model, shape):
    return jax.eval_shape(model.init, KEY, jnp.zeros((1, *shape)))["params"]


def count(params):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("name", MODELS)
def test_parameters_logits_and_gradients_have_their_sizes_and_are_finite(name):
    model, inputs, params = made(name)
    loss = models.classification(model)

    @quickly
    def both(params, inputs):
        logits = model.apply({"params": params}, inputs)
        return logits, jax.grad(loss.value)(params, inputs, jnp.array([3, 9]))

    logits, gradient = both(params, inputs)
    assert count(params) == MODELS[name][2]
    assert logits.shape == (2, 10) and logits.dtype == jnp.float32
    for leaf in jax.tree.leaves((logits, gradient)):
        assert np.isfinite(leaf).all()
    assert jax.tree.map(jnp.shape, gradient) == jax.tree.map(jnp.shape, params)


@pytest.mark.parametrize(("name", "size"), LARGE)
def test_large_models_have_their_sizes(name, size):
    params = shapes_of(models.build(name, 10, size=size), IMAGES)
    assert count(params) == LARGE[name, size]


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


def test_layers_have_their_usual_shapes():
    shapes = jax.tree.map(jnp.shape, shapes_of(models.cnn(10), IMAGES))
    assert shapes["conv1"] == {"kernel": (3, 3, 3, 32), "bias": (32,)}
    assert shapes["conv2"] == {"kernel": (3, 3, 32, 64), "bias": (64,)}
    assert shapes["dense1"] == {"kernel": (12_544, 128), "bias": (128,)}


def test_the_smooth_net_begins_wide():
    model, inputs, _ = made("sigmoid_lenet")
    for leaf in jax.tree.leaves(models.classification(model).init(KEY, inputs)):
        assert 0.3 < float(jnp.abs(leaf).max()) <= 0.5


@pytest.mark.parametrize("width", [3, 12])  # which eight groups do not divide
def test_each_stage_of_a_resnet_has_half_the_places_and_twice_the_channels(width):
    model = models.resnet(10, width=width, blocks=1)

    def outputs():
        image, seen = jnp.zeros((1, 16, 16, 3)), {"capture_intermediates": True}
        return model.init_with_output(KEY, image, **seen)[1]["intermediates"]

    blocks = jax.eval_shape(outputs)
    for stage in (1, 2, 3):
        (block,) = blocks[f"stage{stage}_block1"]["__call__"]
        side = 32 // 2**stage
        assert block.shape == (1, side, side, width * 2 ** (stage - 1))


def test_the_logistic_model_is_a_dense_layer_stored_by_class():
    model, images = models.logistic(3), jax.random.normal(KEY, (5, 2, 2, 1))
    kernel, bias = jax.random.normal(KEY, (3, 4)), jnp.arange(3.0)
    params = {"params": {"dense": {"kernel": kernel, "bias": bias}}}
    expected = images.reshape(5, 4) @ kernel.T + bias
    logits = model.apply(params, images)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_the_cnn_leaves_out_half_as_many_after_the_pool():
    rates, model = [], models.cnn(10, width=2, dropout=0.5)

    def note(apply, args, options, context):
        if isinstance(context.module, nn.Dropout):
            rates.append(context.module.rate)
        return apply(*args, **options)

    with nn.intercept_methods(note):
        jax.eval_shape(model.init, KEY, jnp.zeros((1, 8, 8, 3)))
    assert rates == [0.25, 0.5]


@pytest.mark.parametrize("norm", NORMS)
def test_a_bottleneck_begins_as_its_shortcut_and_leaves_it(norm):
    block, x = Bottleneck(8, 1, norm), jax.random.normal(KEY, (2, 4, 4, 32))
    variables = quickly(block.init)(KEY, x)

    @quickly
    def output_and_slopes(params):
        def loss(params):
            y = block.apply(variables | {"params": params}, x)
            return jnp.square(y).sum(), y

        return jax.grad(loss, has_aux=True)(params)

    params = variables["params"]
    slopes, start = output_and_slopes(params)
    np.testing.assert_array_equal(start, nn.relu(x))
    assert np.abs(slopes["norm3"]["scale"]).min() > 0
    moved = params | {"norm3": jax.tree.map(jnp.ones_like, params["norm3"])}
    assert np.abs(output_and_slopes(moved)[1] - nn.relu(x)).max() > 0.1


@pytest.mark.parametrize("norm", NORMS)
def test_a_shortcut_with_a_convolution_is_normalised_with_scales_of_one(norm):
    x = jnp.ones((2, 4, 4, 16))
    params = quickly(Bottleneck(8, 2, norm).init)(KEY, x)["params"]
    scales = {name: own["scale"] for name, own in params.items() if "scale" in own}
    means = {name: float(scale.mean()) for name, scale in scales.items()}
    assert means == {"norm1": 1, "norm2": 1, "norm3": 0, "norm4": 1}


@pytest.mark.parametrize(
    ("model", "inputs", "error", "words"),
    [
        (models.lenet(10), jnp.zeros((2, 784)), ValueError, r"images.*\(2, 784\)"),
        (models.cnn(10), jnp.zeros(IMAGES), ValueError, r"\(32, 32, 3\)"),
        (models.lenet(10), jnp.zeros((2, 11, 12, 1)), ValueError, "12x12.*11x12"),
        (models.cnn(10), jnp.zeros((2, 6, 5, 1)), ValueError, "6x6.*6x5"),
        (models.logistic(10), jnp.zeros(5), ValueError, r"got shape \(5,\)"),
        (models.mlp(10), jnp.zeros((2, 5), jnp.uint8), TypeError, "uint8"),
        (models.cnn(10), jnp.zeros((1, *IMAGES), int), TypeError, "int32"),
        (models.vit(10), jnp.zeros((1, *IMAGES), jnp.uint8), TypeError, "uint8"),
        (models.vit(10, patch=5), jnp.zeros((1, *IMAGES)), ValueError, "patch=5.*, 32"),
        (models.transformer(2), jnp.zeros((1, 9)), TypeError, r"float32.*\(1, 9\)"),
    ],
)
def test_inputs_that_do_not_fit_get_one_line(model, inputs, error, words):
    with refused(match=words, error=error):
        jax.eval_shape(model.init, KEY, inputs)
