"""Transformers: exact sizes, and what each place may and may not see."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import models
from fl_sketch.data import text
from fl_sketch.models import transformers
from tests.channels.rounds import quickly

KEY = jax.random.key(0)
IMAGES, TOKENS = jnp.zeros((1, 32, 32, 3)), jnp.zeros((1, 48), jnp.int32)


def count(model, inputs):
    shapes = jax.eval_shape(model.init, KEY, inputs)["params"]
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    ("name", "size", "options", "inputs", "expected"),
    [
        ("vit", "small", {}, IMAGES, 207_946),
        ("transformer", "small", {}, TOKENS, 627_586),
        ("language_model", "small", {}, TOKENS, None),
        ("vit", "paper", {}, IMAGES, 85_150_474),
        ("transformer", "paper", {}, TOKENS, None),
        ("resnet", "paper", {}, IMAGES, 42_512_970),
        ("resnet", "tiny", {}, IMAGES, 75_290),
    ],
)
def test_sizes_are_exact(name, size, options, inputs, expected):
    classes = 2 if name == "transformer" else 10
    model = models.build(name, classes, size=size, **options)
    found = count(model, inputs)
    if expected is None:  # by hand: embeddings, blocks, the last normalisation, logits
        width, depth = model.width, model.depth
        rows = getattr(model, "vocabulary", classes)
        block = 12 * width**2 + 13 * width
        expected = (rows + 48) * width + depth * block + 2 * width
        expected += (width + 1) * classes
    assert found == expected


def made(model, inputs):
    params = quickly(model.init)(KEY, inputs)["params"]
    # Positions and embeddings of size one, so that everything can be seen.
    params = jax.tree.map(lambda leaf: np.asarray(leaf) * 3, params)
    apply = quickly(lambda params, x: model.apply({"params": params}, x))
    return functools.partial(apply, params)


def test_words_after_the_end_do_not_matter_and_others_do():
    tokens = jnp.array([[2, 5, 7, 9, 0, 0]])
    model = models.transformer(2, vocabulary=12, width=8, depth=2, heads=2)
    apply = made(model, tokens)
    # As many places, so the same positions; only what is at a padded place changes.
    logits = apply(tokens)
    assert np.isfinite(logits).all()
    for place, word in [(1, 6), (3, 4), (0, 3)]:
        assert np.abs(apply(tokens.at[0, place].set(word)) - logits).max() > 1e-4

    def seen(table):
        params = model.init(KEY, tokens)["params"] | {"tokens": table}
        return model.apply({"params": params}, tokens).sum()

    hidden = quickly(jax.jacobian(seen))({"embedding": jax.random.normal(KEY, (12, 8))})
    hidden = hidden["embedding"]
    assert (hidden[transformers.PAD] == 0).all() and (hidden[5] != 0).any()


def test_an_empty_text_has_finite_logits():
    model = models.transformer(2, vocabulary=12, width=8, depth=1, heads=2)
    assert np.isfinite(made(model, TOKENS[:, :4])(TOKENS[:, :4])).all()


def test_a_place_of_the_language_model_sees_only_what_came_before():
    tokens = jnp.array([[2, 5, 7, 9]])
    apply = made(models.language_model(12, width=8, depth=2, heads=2), tokens)
    other = apply(tokens.at[0, 2].set(3))
    before = apply(tokens)
    assert before.shape == (1, 4, 12)
    np.testing.assert_allclose(other[0, :2], before[0, :2], atol=1e-6)
    assert np.abs(other[0, 2:] - before[0, 2:]).min(axis=1).max() > 1e-5


def test_patches_are_squares_of_the_image():
    image = jnp.arange(4 * 6 * 2.0).reshape(1, 4, 6, 2)
    found = transformers._patches(image, 2)
    assert found.shape == (1, 6, 8)
    np.testing.assert_array_equal(
        found[0, 4], image[0, 2:4, 2:4].ravel()
    )  # second row, second column


def test_padding_is_the_same_token_to_data_and_models():
    assert transformers.PAD == text.PAD


def test_labels_of_padding_do_not_count():
    model = models.language_model(7, width=8, depth=1, heads=2)
    tokens = jnp.array([[2, 5, 3, 0]])
    loss = models.classification(model, padding=0)
    targets = jnp.array([[5, 3, 0, 0]])
    plain = models.classification(model)
    weights = jnp.array([[1.0, 1, 0, 0]])

    @quickly
    def both(tokens, targets, weights):
        params = loss.init(KEY, tokens)
        value = loss.value(params, tokens, targets)
        expected = plain.value(params, tokens, targets, weights)
        return loss.metrics(params, tokens, targets)["count"], value, expected

    count, value, expected = both(tokens, targets, weights)
    assert int(count) == 2
    np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: models.vit(10, heads=5), ValueError, "width=64, got heads=5"),
        (lambda: models.transformer(2, depth=0), ValueError, "depth=0"),
        (lambda: models.transformer(2, vocabulary=0), ValueError, "vocabulary=0"),
        (lambda: models.build("mlp", 2, size="paper"), ValueError, "model 'mlp'"),
        (lambda: models.build("vit", 2, size="big"), ValueError, "size='big'"),
        (
            lambda: models.vit(10, patch=5).init(KEY, IMAGES),
            ValueError,
            r"patch=5, got shape \(1, 32, 32, 3\)",
        ),
        (
            lambda: models.vit(10).init(KEY, IMAGES.astype(jnp.uint8)),
            TypeError,
            "uint8",
        ),
        (
            lambda: models.transformer(2).init(KEY, IMAGES),
            TypeError,
            "tokens.*float32 of shape",
        ),
    ],
)
def test_bad_options_and_inputs_get_one_line(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
