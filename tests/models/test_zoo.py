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
from fl_sketch.models.resnets import (
    BOTTLENECK_GROUPS,
    NORMS,
    Bottleneck,
    GroupNorm,
    normalized,
)
from tests.channels.rounds import quickly
from tests.refusals import refused

KEY = jax.random.key(0)
SIDE = 32
TEXT = (48,)
BLOCKS = {"width": 8, "depth": 1, "heads": 2}
# name: (options, shape of an input, parameters for ten classes)
MODELS = {
    "logistic": ({}, (28, 28, 1), 7_850),
    "mlp": ({"hidden": (32, 16)}, (8, 8, 1), 64 * 32 + 32 + 32 * 16 + 16 + 170),
    "lenet": ({}, (28, 28, 1), 61_706),
    "sigmoid_lenet": ({}, (28, 28, 1), 13_426),
    "cnn": ({"width": 4}, (16, 16, 3), 5_202),
    "resnet": ({"stages": (1, 1, 1), "width": 8}, (16, 16, 3), 19_218),
    "vit": ({"depth": 1, "width": 8}, (8, 8, 3), 1_402),
    "transformer": ({"vocabulary": 12, **BLOCKS}, (6,), 1_122),
    "language_model": (BLOCKS, (6,), 1_106),
}


def of_text(vocabulary, width, depth):
    """Embeddings and positions, blocks, the last normalisation, ten logits."""
    blocks = depth * (12 * width**2 + 13 * width)
    return (vocabulary + 48) * width + blocks + 2 * width + (width + 1) * 10


LARGE = {
    ("cnn", "small"): 1_626_442,
    ("resnet", "small"): 269_722,
    ("resnet", "tiny"): 75_290,
    ("resnet", "paper"): 42_512_970,
    ("vit", "small"): 207_946,
    ("vit", "paper"): 85_150_474,
    ("transformer", "small"): of_text(8192, 64, 2),
    ("transformer", "paper"): of_text(8192, 768, 12),
    ("language_model", "small"): of_text(10, 64, 2),
    ("language_model", "billion"): of_text(10, 2048, 26),
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


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_its_size_and_trains_on_examples_in_any_order(name):
    model, inputs, labels, params = made(name)
    loss, order = models.classification(model), np.array([2, 0, 3, 1])

    @quickly
    def both(params, inputs, labels):
        logits = model.apply({"params": params}, inputs)
        value, slopes = jax.value_and_grad(loss.value)(params, inputs, labels)
        moved = jax.tree.map(lambda leaf, slope: leaf - 0.01 * slope, params, slopes)
        return logits, value, slopes, loss.value(moved, inputs, labels)

    logits, value, slopes, later = both(params, inputs, labels)
    assert count(params) == MODELS[name][2]
    assert logits.shape == (*labels.shape, 10) and logits.dtype == jnp.float32
    assert np.isfinite(value) and later < value
    assert jax.tree.map(jnp.shape, slopes) == jax.tree.map(jnp.shape, params)
    again = both(params, inputs[order], labels[order])
    np.testing.assert_allclose(again[0], logits[order], atol=1e-5)
    np.testing.assert_allclose(again[1], value, rtol=1e-5)


@pytest.mark.parametrize(("name", "size"), LARGE)
def test_large_models_have_their_sizes(name, size):
    texts = name in ("transformer", "language_model")
    model = models.build(name, 10, size=size)
    shapes = shapes_of(model, TEXT if texts else (SIDE, SIDE, 3))
    assert count(shapes) == LARGE[name, size]


def test_lenet_equals_layers_of_flax_on_the_same_parameters():
    model, inputs, _, params = made("lenet")

    @quickly
    def both(params, inputs):
        layer = {name: {"params": params[name]} for name in params}
        x = nn.relu(nn.Conv(6, (5, 5)).apply(layer["conv1"], inputs))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.Conv(16, (5, 5), padding="VALID").apply(layer["conv2"], x)
        x = nn.max_pool(nn.relu(x), (2, 2), (2, 2)).reshape(len(inputs), -1)
        x = nn.relu(nn.Dense(120).apply(layer["dense1"], x))
        x = nn.relu(nn.Dense(84).apply(layer["dense2"], x))
        expected = nn.Dense(10).apply(layer["dense3"], x)
        return model.apply({"params": params}, inputs), expected

    np.testing.assert_allclose(*both(params, inputs), atol=1e-5)


def test_logistic_is_a_dense_layer_stored_by_class():
    model, images = models.Logistic(3), jax.random.normal(KEY, (5, 2, 2, 1))
    kernel, bias = jax.random.normal(KEY, (3, 4)), jnp.arange(3.0)
    params = {"params": {"dense": {"kernel": kernel, "bias": bias}}}
    expected = images.reshape(5, 4) @ kernel.T + bias
    logits = model.apply(params, images)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_the_cnn_drops_half_as_many_after_the_pool():
    rates, model = [], models.Cnn(10, width=2, dropout=0.5)

    def note(apply, args, options, context):
        if isinstance(context.module, nn.Dropout):
            rates.append(context.module.rate)
        return apply(*args, **options)

    with nn.intercept_methods(note):
        shapes_of(model, (8, 8, 3))
    assert rates == [0.25, 0.5]


@pytest.mark.parametrize("width", [3, 12])  # which eight groups do not divide
def test_each_stage_of_a_resnet_has_half_the_places_and_twice_the_channels(width):
    model = models.ResNet(10, width=width, stages=(1, 1, 1))

    def outputs():
        image, seen = jnp.zeros((1, 16, 16, 3)), {"capture_intermediates": True}
        return model.init_with_output(KEY, image, **seen)[1]["intermediates"]

    blocks = jax.eval_shape(outputs)
    for stage in (1, 2, 3):
        (block,) = blocks[f"stage{stage}_block1"]["__call__"]
        side = 32 // 2**stage
        assert block.shape == (1, side, side, width * 2 ** (stage - 1))


@pytest.mark.parametrize("norm", NORMS)
def test_a_bottleneck_starts_as_its_shortcut_and_leaves_it(norm):
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


def test_group_normalisation_adds_up_short_floats_as_flax_does():
    x = (20 + jax.random.normal(KEY, (2, 8, 8, 8))).astype(jnp.bfloat16)
    params = {"params": {"scale": jnp.full(8, 2.0), "bias": jnp.full(8, 0.5)}}
    for dtype in (jnp.bfloat16, jnp.float32):
        own = jax.tree.map(lambda leaf: leaf.astype(dtype), params)  # noqa: B023
        ours, theirs = (g.apply(own, x) for g in (GroupNorm(2), nn.GroupNorm(2)))
        assert ours.dtype == theirs.dtype
        ours, theirs = (np.asarray(y, np.float32) for y in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=0.01, atol=0.02)


class Normalised(nn.Module):
    norm: str
    train: bool = True

    @nn.compact
    def __call__(self, x):
        return normalized(self.norm, BOTTLENECK_GROUPS, self.train, x, "norm")


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
    return functools.partial(apply, params), functools.partial(model.apply), params


def test_padding_does_not_matter_and_words_do():
    tokens = jnp.array([[2, 5, 7, 9, 0, 0]])
    logits_of, apply, params = visible("transformer", tokens)
    logits = logits_of(tokens)
    for place, word in [(1, 6), (3, 4), (0, 3)]:  # as many words, the same positions
        assert np.abs(logits_of(tokens.at[0, place].set(word)) - logits).max() > 1e-4

    def sum_of_logits(table):
        tables = params | {"tokens": {"embedding": table}}
        return apply({"params": tables}, tokens).sum()

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
    assert patches.shape == (1, 6, 8)
    # The second row and the second column.
    np.testing.assert_array_equal(patches[0, 4], image[0, 2:4, 2:4].ravel())


def test_options_arrive():
    assert models.build("mlp", 10, hidden=[8, 4]).hidden == (8, 4)
    assert models.build("mlp", 10, hidden=()).hidden == ()
    assert models.build("resnet", 10, size="tiny", width=8).width == 8
    assert models.build("vit", 10, size="paper", patch=8).patch == 8


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("lenett", {}, "Did you mean 'lenet'"),
        ("mlp", {"hiden": (3,)}, "'hidden'"),
        ("resnet", {"size": "paper", "width": 3}, "size='paper'"),
        ("mlp", {"size": "paper"}, "size='paper'"),
        ("own.py:NAME", {"size": "paper"}, "size='paper'"),
        ("cnn", {"kernels": "glorot"}, "glorot_uniform"),
        ("cnn", {"dropout": 1.0}, "dropout=1.0"),
        ("vit", {"heads": 5}, "heads=5"),
        ("mlp", {"hidden": (8, 0)}, "hidden[1]=0"),
        ("logistic", {"classes": 0}, "classes=0"),
        ("resnet", {"norm": "layer"}, "norm='layer'"),
    ],
)
def test_what_a_config_cannot_say_gets_one_line(name, options, part):
    with refused(part):
        models.build(name, **{"classes": 10, **options})


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (models.LeNet(10), jnp.zeros((2, 784))),
        (models.LeNet(10), jnp.zeros((2, 11, 12, 1))),
        (models.Logistic(10), jnp.zeros(5)),
        (models.Mlp(10), jnp.zeros((2, 5), jnp.uint8)),
        (models.Transformer(10, reads="patches", patch=5), jnp.zeros((1, 32, 32, 3))),
        (models.Transformer(2), jnp.zeros((1, 9))),
    ],
    ids=range(6),
)
def test_inputs_that_do_not_fit_get_one_line(model, inputs):
    with refused("got", error=(ValueError, TypeError)):
        jax.eval_shape(model.init, KEY, inputs)
