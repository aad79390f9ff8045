"""Every model has its size, trains, is built by name, and sees what it should."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import models
from fl_sketch.models import transformers
from fl_sketch.models.resnets import GroupNorm, normalized
from tests.channels.rounds import quickly
from tests.quick import some_fast
from tests.refusals import refused

KEY = jax.random.key(0)
BLOCKS = {"width": 8, "depth": 1, "heads": 2}
# name: (options, shape of an input, parameters for ten classes)
MODELS = {
    "logistic": ({}, (28, 28, 1), 7_850),
    "mlp": ({"hidden": (32, 16)}, (8, 8, 1), 64 * 32 + 32 + 32 * 16 + 16 + 170),
    "lenet": ({}, (28, 28, 1), 61_706),
    "lenet_valid": ({}, (32, 32, 3), 62_006),
    "sigmoid_lenet": ({}, (28, 28, 1), 13_426),
    "cnn": ({"width": 4}, (16, 16, 3), 5_202),
    "resnet": ({"stages": (1, 1, 1), "width": 8}, (16, 16, 3), 19_218),
    "vit": ({"depth": 1, "width": 8}, (8, 8, 3), 1_402),
    "transformer": ({"vocabulary": 12, **BLOCKS}, (6,), 1_122),
    "language_model": (BLOCKS, (6,), 1_106),
}
LARGE = {
    ("mlp", "tiny"): 32 * 32 * 3 * 128 + 128 + 1290,
    ("cnn", "small"): 1_626_442,
    ("resnet", "small"): 269_722,
    ("resnet", "tiny"): 75_290,
    ("resnet", "paper"): 42_512_970,
    ("vit", "small"): 207_946,
    ("vit", "paper"): 85_150_474,
}


def shapes_of(model, shape):
    texts = jnp.zeros((1, *shape), jnp.int32 if len(shape) == 1 else jnp.float32)
    return jax.eval_shape(model.init, KEY, texts)["params"]


def count(params):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


@functools.cache
def made(name):
    """Returns (model, four inputs, labels, random parameters)."""
    options, shape, _ = MODELS[name]
    model, random = models.build(name, 10, **options), np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: 0.1 * random.normal(size=leaf.shape).astype(np.float32),
        shapes_of(model, shape),
    )
    if len(shape) == 1:
        inputs = random.integers(1, 10, (4, *shape)).astype(np.int32)
    else:
        inputs = random.normal(size=(4, *shape)).astype(np.float32)
    labels = inputs if name == "language_model" else np.array([3, 9, 0, 3])
    return model, inputs, labels, params


QUICK = ("mlp", "cnn", "resnet", "language_model")


@pytest.mark.parametrize("name", some_fast(MODELS, QUICK))
def test_a_model_has_its_size_and_trains_on_examples_in_any_order(name):
    model, inputs, labels, params = made(name)
    loss, order = models.classification(model), np.array([2, 0, 3, 1])

    @quickly
    def both(params, inputs, labels):
        logits = model.apply({"params": params}, inputs)
        value, slopes = jax.value_and_grad(loss.value)(params, inputs, labels)
        moved = jax.tree.map(lambda leaf, slope: leaf - 0.01 * slope, params, slopes)
        return logits, value, loss.value(moved, inputs, labels)

    logits, value, later = both(params, inputs, labels)
    assert count(params) == MODELS[name][2]
    assert logits.shape == (*labels.shape, 10) and logits.dtype == jnp.float32
    assert np.isfinite(value) and later < value
    again = both(params, inputs[order], labels[order])
    np.testing.assert_allclose(again[0], logits[order], atol=1e-5)
    np.testing.assert_allclose(again[1], value, rtol=1e-5)


def test_large_models_have_their_sizes():
    for (name, size), numbers in LARGE.items():
        model = models.build(name, 10, size=size)
        assert count(shapes_of(model, (32, 32, 3))) == numbers, (name, size)
    assert models.build("resnet", 10, size="tiny", width=8).width == 8


@pytest.mark.parametrize(
    ("name", "first"), [("lenet", "SAME"), ("lenet_valid", "VALID")]
)
def test_lenet_equals_layers_of_flax_on_the_same_parameters(name, first):
    model, inputs, _, params = made(name)

    @quickly
    def both(params, inputs):
        layer = {name: {"params": params[name]} for name in params}
        x = nn.Conv(6, (5, 5), padding=first).apply(layer["conv1"], inputs)
        x = nn.relu(x)
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.Conv(16, (5, 5), padding="VALID").apply(layer["conv2"], x)
        x = nn.max_pool(nn.relu(x), (2, 2), (2, 2)).reshape(len(inputs), -1)
        x = nn.relu(nn.Dense(120).apply(layer["dense1"], x))
        x = nn.relu(nn.Dense(84).apply(layer["dense2"], x))
        expected = nn.Dense(10).apply(layer["dense3"], x)
        return model.apply({"params": params}, inputs), expected

    np.testing.assert_allclose(*both(params, inputs), atol=1e-5)


def test_logistic_is_a_dense_layer_stored_by_class():
    model, inputs, _, params = made("logistic")
    kernel, bias = params["dense"]["kernel"], params["dense"]["bias"]
    expected = inputs.reshape(4, -1) @ kernel.T + bias
    logits = model.apply({"params": params}, inputs)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("groups", "batch"), [(1, 2), (2, 2), (8, 2), (2, 0)])
def test_group_normalisation_is_that_of_flax(groups, batch):
    ours, of_flax = GroupNorm(groups), nn.GroupNorm(groups)
    x = 3 + jax.random.normal(KEY, (batch, 5, 4, 8))
    params = of_flax.init(KEY, x)
    jax.tree.map(np.testing.assert_array_equal, params, ours.init(KEY, x))
    params = jax.tree.map(lambda leaf: leaf + jnp.arange(8.0), params)

    def computed(layer):
        def value(params, x):
            y = layer.apply(params, x)
            return jnp.sin(y).sum(), y

        return quickly(jax.grad(value, (0, 1), has_aux=True))(params, x)

    close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3)
    jax.tree.map(close, computed(ours), computed(of_flax))


class Normalised(nn.Module):
    norm: str
    train: bool = True

    @nn.compact
    def __call__(self, x):
        return normalized(self.norm, 32, self.train, x, "norm")


def test_statistics_of_batches_move_by_a_tenth_in_training_and_serve_afterwards():
    x = 3 + jax.random.normal(KEY, (16, 2, 2, 4))
    trained, measured = Normalised("batch"), Normalised("batch", train=False)
    variables = trained.init(KEY, x)
    y, moved = trained.apply(variables, x, mutable=["batch_stats"])
    np.testing.assert_allclose(y.mean((0, 1, 2)), 0, atol=1e-5)
    mean, var = (moved["batch_stats"]["norm"][name] for name in ("mean", "var"))
    np.testing.assert_allclose(mean, 0.1 * x.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(var, 0.9 + 0.1 * x.var((0, 1, 2)), rtol=1e-5)
    after = measured.apply(variables | moved, x)
    np.testing.assert_allclose(after, (x - mean) / np.sqrt(var + 1e-5), rtol=1e-4)


def test_channels_that_no_group_divides_have_fewer_groups():
    x = jax.random.normal(KEY, (2, 3, 3, 12)).at[1].set(1e3)
    y, _ = Normalised("group").init_with_output(KEY, x)
    np.testing.assert_allclose(y.reshape(2, 9, 4, 3).mean((1, 3)), 0, atol=1e-6)
    np.testing.assert_array_equal(y[1], 0)  # all numbers are equal


def visible(name, tokens):
    """Returns a model's logits as a function of tokens, and of its parameters."""
    model = models.build(name, 12, **MODELS[name][0])
    params = quickly(model.init)(KEY, tokens)["params"]
    # Positions and embeddings of size one, so that everything can be seen.
    params = jax.tree.map(lambda leaf: np.asarray(leaf) * 3, params)
    apply = quickly(lambda params, x: model.apply({"params": params}, x))
    return functools.partial(apply, params), model, params


def test_padding_does_not_matter_and_words_do():
    tokens = jnp.array([[2, 5, 7, 9, 0, 0]])
    logits_of, model, params = visible("transformer", tokens)
    logits = logits_of(tokens)
    for place, word in [(1, 6), (3, 4), (0, 3)]:  # as many words, the same positions
        assert np.abs(logits_of(tokens.at[0, place].set(word)) - logits).max() > 1e-4

    def sum_of_logits(table):
        tables = params | {"tokens": {"embedding": table}}
        return model.apply({"params": tables}, tokens).sum()

    slopes = quickly(jax.grad(sum_of_logits))(jax.random.normal(KEY, (12, 8)))
    assert (slopes[transformers.PAD] == 0).all() and (slopes[5] != 0).any()
    assert np.isfinite(logits_of(jnp.zeros_like(tokens))).all()


def test_a_position_of_the_language_model_sees_only_what_came_before():
    tokens = jnp.array([[2, 5, 7, 9]])
    logits_of, *_ = visible("language_model", tokens)
    other, before = logits_of(tokens.at[0, 2].set(3)), logits_of(tokens)
    np.testing.assert_allclose(other[0, :2], before[0, :2], atol=1e-6)
    assert np.abs(other[0, 2:] - before[0, 2:]).min(axis=1).max() > 1e-5


def test_patches_are_squares_of_the_image():
    image = jnp.arange(4 * 6 * 2.0).reshape(1, 4, 6, 2)
    patches = transformers._patches(image, 2)
    # The second row and the second column.
    np.testing.assert_array_equal(patches[0, 4], image[0, 2:4, 2:4].ravel())


IMAGES, ROWS = jnp.zeros((2, 32, 32, 3)), jnp.zeros((2, 5))


@pytest.mark.parametrize(
    ("name", "options", "inputs", "part"),
    [
        ("lenett", {}, IMAGES, "lenet"),
        ("mlp", {"hiden": (3,)}, IMAGES, "hidden"),
        ("resnet", {"size": "paper", "width": 3}, IMAGES, "width"),
        ("cnn", {"dropout": 1.0}, IMAGES, "dropout"),
        ("vit", {"heads": 5}, IMAGES, "heads"),
        ("lenet", {}, IMAGES[:, :11, :12], "12x12"),
        ("mlp", {}, ROWS.astype(jnp.uint8), "uint8"),
        ("vit", {"patch": 5}, IMAGES, "patch"),
        ("transformer", {}, ROWS, "float32"),
    ],
    ids=range(9),
)
def test_what_does_not_fit_gets_one_line(name, options, inputs, part):
    with refused(part, error=(ValueError, TypeError)):
        model = models.build(name, **{"classes": 10, **options})
        jax.eval_shape(model.init, KEY, inputs)
