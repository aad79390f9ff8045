"""Transformers: exact sizes, and what each place may and may not see."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import models
from fl_sketch.models import transformers
from tests.channels.rounds import quickly

KEY = jax.random.key(0)
TOKENS = jnp.zeros((1, 48), jnp.int32)


@pytest.mark.parametrize(
    ("name", "size", "classes", "vocabulary"),
    [
        ("transformer", "small", 2, 8192),
        ("transformer", "paper", 2, 8192),
        ("language_model", "small", 10, 10),
        ("language_model", "billion", 10, 10),
    ],
)
def test_sizes_are_exact(name, size, classes, vocabulary):
    model = models.build(name, classes, size=size)
    shapes = jax.eval_shape(model.init, KEY, TOKENS)["params"]
    width, depth = model.width, model.depth
    # Embeddings, blocks, the last normalisation, logits.
    expected = (vocabulary + 48) * width + depth * (12 * width**2 + 13 * width)
    expected += 2 * width + (width + 1) * classes
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == expected


def made(model, inputs):
    params = quickly(model.init)(KEY, inputs)["params"]
    # Positions and embeddings of size one, so that everything can be seen.
    params = jax.tree.map(lambda leaf: np.asarray(leaf) * 3, params)
    apply = quickly(lambda params, x: model.apply({"params": params}, x))
    return params, functools.partial(apply, params)


def test_words_after_the_end_do_not_matter_and_others_do():
    tokens = jnp.array([[2, 5, 7, 9, 0, 0]])
    model = models.transformer(2, vocabulary=12, width=8, depth=1, heads=2)
    params, apply = made(model, tokens)
    logits = apply(tokens)
    assert np.isfinite(logits).all()
    # As many places, so the same positions.
    for place, word in [(1, 6), (3, 4), (0, 3)]:
        assert np.abs(apply(tokens.at[0, place].set(word)) - logits).max() > 1e-4

    def sum_of_logits(table):
        tables = params | {"tokens": {"embedding": table}}
        return model.apply({"params": tables}, tokens).sum()

    slopes = quickly(jax.grad(sum_of_logits))(jax.random.normal(KEY, (12, 8)))
    assert (slopes[transformers.PAD] == 0).all() and (slopes[5] != 0).any()
    assert np.isfinite(apply(jnp.zeros_like(tokens))).all()


def test_a_place_of_the_language_model_sees_only_what_came_before():
    tokens = jnp.array([[2, 5, 7, 9]])
    _, apply = made(models.language_model(12, width=8, depth=2, heads=2), tokens)
    other = apply(tokens.at[0, 2].set(3))
    before = apply(tokens)
    assert before.shape == (1, 4, 12)
    np.testing.assert_allclose(other[0, :2], before[0, :2], atol=1e-6)
    assert np.abs(other[0, 2:] - before[0, 2:]).min(axis=1).max() > 1e-5


def test_patches_are_squares_of_the_image():
    image = jnp.arange(4 * 6 * 2.0).reshape(1, 4, 6, 2)
    patches = transformers._patches(image, 2)
    assert patches.shape == (1, 6, 8)
    # The second row and the second column.
    np.testing.assert_array_equal(patches[0, 4], image[0, 2:4, 2:4].ravel())


def test_padding_does_not_count():
    model = models.language_model(7, width=8, depth=1, heads=2)
    tokens, targets = jnp.array([[2, 5, 3, 0]]), jnp.array([[5, 3, 0, 0]])
    loss, plain = (models.classification(model, padding=pad) for pad in (0, None))
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
