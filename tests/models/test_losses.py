"""The loss against hand arithmetic, weights and padding, in the types of training."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import models
from fl_sketch.core import trees
from tests.channels.rounds import quickly
from tests.models import own
from tests.refusals import refused

KEY = jax.random.key(0)


class Logits(nn.Module):
    """A model whose only layer adds a bias to its inputs."""

    @nn.compact
    def __call__(self, inputs):
        return inputs + self.param("bias", nn.initializers.zeros, inputs.shape[-1:])


def of(kind="cross_entropy", **options):
    return models.supervised(Logits(), kind, **options)


SHARES = np.array([[1 / 4, 3 / 4], [1 / 2, 1 / 2], [9 / 10, 1 / 10]])
LOGITS = jnp.log(jnp.asarray(SHARES))
LABELS = jnp.array([1, 0, 1])
EACH = -np.log([3 / 4, 1 / 2, 1 / 10])
PARAMS = {"bias": jnp.zeros(2)}
SHIFTED = {"bias": jnp.ones(2)}  # as long as sqrt(2); the shares are the same
OUTPUTS = jnp.array([[0.5, -2.0], [0.0, 3.0]])
TARGETS = jnp.array([[1.0, 0.0], [2.0, 2.5]])
ERRORS = np.array([[-0.5, -2.0], [-2.0, 0.5]])
CLASSES = (LOGITS, LABELS)


SMOOTH = 0.8 * np.eye(2)[[1, 0, 1]] + 0.1
BINARY = np.log1p(np.exp([-0.5, -2, 0, -3]))


@pytest.mark.parametrize(
    ("kind", "options", "batch", "weights", "expected"),
    [
        ("cross_entropy", {}, CLASSES, None, EACH.mean()),
        ("cross_entropy", {}, CLASSES, [2, 0, 1], (2 * EACH[0] + EACH[2]) / 3),
        ("cross_entropy", {"label_smoothing": 0.2}, CLASSES, None,
         -(SMOOTH * np.log(SHARES)).sum(1).mean()),
        ("cross_entropy", {"padding": 0}, CLASSES, None, (EACH[0] + EACH[2]) / 2),
        ("cross_entropy", {"weight_decay": 0.1}, CLASSES, None, EACH.mean() + 0.1),
        ("squared", {}, (OUTPUTS - 1, TARGETS), None, (ERRORS**2).mean()),
        ("binary", {}, (OUTPUTS - 1, np.eye(2)), None, BINARY.mean()),
    ],
    ids=range(7),
)  # fmt: skip
def test_the_value_is_a_mean_by_hand(kind, options, batch, weights, expected):
    loss = of(kind, **options)
    value = loss.value(SHIFTED, *batch, weights and jnp.array(weights))
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert value.shape == () and value.dtype == jnp.float32
    sums = loss.metrics(SHIFTED, *batch, weights and jnp.array(weights))
    counted = sum(weights) if weights else len(batch[0]) - ("padding" in options)
    assert sums["count"] == counted


def test_a_batch_of_padding_alone_moves_nothing():
    loss = of(label_smoothing=0.1, weight_decay=0.1)
    value_and_gradient = quickly(jax.value_and_grad(loss.value))
    value, gradient = value_and_gradient(SHIFTED, LOGITS, LABELS, jnp.zeros(3))
    assert value == 0
    np.testing.assert_array_equal(gradient["bias"], 0)


def test_metrics_are_sums_and_ignore_smoothing_and_decay():
    loss = of(label_smoothing=0.3, weight_decay=1.0)
    sums = loss.metrics(PARAMS, LOGITS, LABELS)
    np.testing.assert_allclose(sums["loss"], EACH.sum(), rtol=1e-6)
    assert sums["accuracy"] == (2, 3)  # argmax takes the first of two
    # Weights of texts may leave out the places.
    texts, labels = jnp.stack([LOGITS, 2 * LOGITS]), jnp.stack([LABELS, LABELS])
    first = loss.metrics(PARAMS, texts, labels, jnp.array([1, 0]))
    jax.tree.map(np.testing.assert_array_equal, first, sums)


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_outside_of_the_classes_does_not_pass(label):
    loss = of()
    assert np.isnan(loss.value(PARAMS, LOGITS, LABELS.at[0].set(label)))


def test_statistics_move_in_training_stay_float32_and_do_not_decay():
    low = models.classification(own.normed(2), dtype="bfloat16")
    plain, decayed = (
        models.classification(own.normed(2), weight_decay=decay) for decay in (0.0, 0.2)
    )
    zeros, labels = jnp.zeros((4, 3)), jnp.zeros(4, int)
    start = low.init(KEY, zeros)
    start = start._replace(state=jax.tree.map(lambda leaf: leaf + 1.001, start.state))
    _, moved = low.value(start, zeros, labels)
    for before, after in zip(*map(jax.tree.leaves, (start.state, moved)), strict=True):
        np.testing.assert_allclose(after, 0.9 * before, rtol=1e-6)
    values = [loss.value(start, zeros, labels)[0] for loss in (plain, decayed)]
    square = float(jnp.sum(trees.ravel(start.params) ** 2))
    assert float(values[1] - values[0]) == pytest.approx(0.1 * square, rel=1e-4)


def test_what_an_example_is_measured_at_does_not_depend_on_its_batch():
    loss, labels = models.classification(own.normed(2)), jnp.zeros(4, int)
    inputs = jax.random.normal(KEY, (4, 3))
    model = loss.init(KEY, inputs)
    measure = quickly(jax.vmap(loss.metrics, (None, 0, 0)))
    alone = measure(model, inputs[:, None], labels[:, None])["loss"]
    together = measure(model, inputs[None], labels[None])["loss"]
    np.testing.assert_allclose(alone.sum(), together.sum(), rtol=1e-5)


def value(targets, *weights, kind="cross_entropy", **options):
    return of(kind, **options).value(PARAMS, LOGITS, targets, *weights)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: of(label_smoothing=1.5), "label_smoothing=1.5"),
        (lambda: of(weight_decay=float("nan")), "weight_decay=nan"),
        (lambda: of("squared", label_smoothing=0.1), "label_smoothing=0"),
        (lambda: value(LABELS[:2]), "(2,)"),
        (lambda: value(LABELS, jnp.ones(2)), "weights"),
        (lambda: value(LABELS, classes=3), "3 outputs"),
        (lambda: value(LABELS, kind="squared"), "(3, 1)"),
    ],
    ids=range(7),
)
def test_bad_input_gets_one_line(call, part):
    with refused(part):
        call()


def test_only_training_is_in_bfloat16_and_its_gradients_are_float32():
    model = models.build("mlp", 10)
    plain, low = (models.classification(model, dtype=dtype) for dtype in models.TYPES)
    images, labels = jax.random.normal(KEY, (64, 8, 8, 1)), jnp.arange(64) % 10
    params = quickly(low.init)(KEY, images)

    @quickly
    def of_both(params):
        arguments = params, images, labels
        return [
            (trees.ravel(jax.grad(loss.value)(*arguments)), loss.metrics(*arguments))
            for loss in (plain, low)
        ]

    (exact, sums), (rounded, low_sums) = of_both(params)
    assert rounded.dtype == jnp.float32
    assert 1e-5 < float(jnp.linalg.norm(exact - rounded) / jnp.linalg.norm(exact)) < 0.1
    jax.tree.map(np.testing.assert_array_equal, sums, low_sums)
