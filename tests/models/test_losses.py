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


@pytest.mark.parametrize(
    ("options", "weights", "expected"),
    [
        ({}, None, EACH.mean()),
        ({}, [2.0, 0.0, 1.0], (2 * EACH[0] + EACH[2]) / 3),
        (
            {"label_smoothing": 0.2},
            None,
            -((0.8 * np.eye(2)[[1, 0, 1]] + 0.1) * np.log(SHARES)).sum(1).mean(),
        ),
        ({"padding": 0}, None, (EACH[0] + EACH[2]) / 2),
        ({"weight_decay": 0.1}, None, EACH.mean() + 0.1),
    ],
)
def test_the_value_is_the_mean_cross_entropy(options, weights, expected):
    loss = of(**options)
    value = loss.value(SHIFTED, LOGITS, LABELS, weights and jnp.array(weights))
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert value.shape == () and value.dtype == jnp.float32


@pytest.mark.parametrize(
    ("kind", "targets", "expected"),
    [
        ("squared", TARGETS, (ERRORS**2).mean()),
        ("binary", np.eye(2), np.log1p(np.exp([-0.5, -2, 0, -3])).mean()),
    ],
)
def test_other_losses_are_means_over_outputs(kind, targets, expected):
    loss = of(kind)
    value = loss.value(PARAMS, OUTPUTS, targets)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    sums = loss.metrics(PARAMS, OUTPUTS, targets, jnp.array([1.0, 0.0]))
    assert sums["count"] == 1


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
    assert sums["count"] == 3


def test_weights_of_texts_may_leave_out_the_places():
    loss = of()
    texts, labels = jnp.stack([LOGITS, 2 * LOGITS]), jnp.stack([LABELS, LABELS])
    weights = jnp.array([1, 0])
    assert loss.metrics(PARAMS, texts, labels, weights)["count"] == 3
    first = loss.value(PARAMS, texts, labels, weights)
    np.testing.assert_allclose(first, EACH.mean(), rtol=1e-6)


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_outside_of_the_classes_does_not_pass(label):
    loss = of()
    assert np.isnan(loss.value(PARAMS, LOGITS, LABELS.at[0].set(label)))


def test_smoothing_and_decay_may_be_swept_in_one_program():
    def value(smoothing, decay):
        loss = of(label_smoothing=smoothing, weight_decay=decay)
        return loss.value(SHIFTED, LOGITS, LABELS)

    smoothing, decay = jnp.array([0.0, 0.3]), jnp.array([0.0, 0.5])
    swept = jax.vmap(value)(smoothing, decay)
    alone = [value(float(a), float(b)) for a, b in zip(smoothing, decay, strict=True)]
    np.testing.assert_allclose(swept, alone, rtol=1e-6)


def test_statistics_move_in_training_and_stay_float32():
    loss = models.classification(own.normed(2), dtype="bfloat16")
    zeros, labels = jnp.zeros((4, 3)), jnp.zeros(4, int)
    start = loss.init(KEY, zeros)
    start = start._replace(state=jax.tree.map(lambda leaf: leaf + 1.001, start.state))
    _, moved = loss.value(start, zeros, labels)
    for before, after in zip(*map(jax.tree.leaves, (start.state, moved)), strict=True):
        np.testing.assert_allclose(after, 0.9 * before, rtol=1e-6)


def test_a_decay_is_of_parameters_and_not_of_statistics():
    plain, decayed = (
        models.classification(own.normed(2), weight_decay=decay) for decay in (0.0, 0.2)
    )
    zeros, labels = jnp.zeros((4, 3)), jnp.zeros(4, int)
    start = plain.init(KEY, zeros)
    values = [loss.value(start, zeros, labels)[0] for loss in (plain, decayed)]
    square = float(jnp.sum(trees.ravel(start.params) ** 2))
    assert float(values[1] - values[0]) == pytest.approx(0.1 * square, rel=1e-4)


def test_targets_that_are_padding_do_not_count():
    model = models.build("language_model", 7, width=8, depth=1, heads=2)
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


class WithCount(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        self.variable("counts", "calls", lambda: jnp.int32(0))
        return nn.Dense(2)(inputs)


def value(targets, *weights, kind="cross_entropy", **options):
    return of(kind, **options).value(PARAMS, LOGITS, targets, *weights)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: of(label_smoothing=1.5), "label_smoothing=1.5"),
        (lambda: of(weight_decay=float("nan")), "weight_decay=nan"),
        (lambda: of(dtype="float16"), "dtype='float16'"),
        (lambda: of("squared", label_smoothing=0.1), "label_smoothing=0"),
        (lambda: models.classification(WithCount()).init(KEY, LOGITS), "counts"),
        (lambda: value(LABELS[:2]), "(2,)"),
        (lambda: value(LABELS, jnp.ones(2)), "weights"),
        (lambda: value(LABELS, classes=3), "3 outputs"),
        (lambda: value(LABELS, kind="squared"), "(3, 1)"),
    ],
    ids=range(9),
)
def test_bad_input_gets_one_line(call, part):
    with refused(part):
        call()


def test_only_training_is_in_bfloat16_and_its_gradients_are_float32():
    model = models.build("mlp", 10)
    plain, low = (
        models.classification(model, weight_decay=0.1, dtype=dtype)
        for dtype in models.TYPES
    )
    # Rounding moves the winners of some poolings: few examples show it in the gradient.
    images, labels = jax.random.normal(KEY, (64, 8, 8, 1)), jnp.arange(64) % 10
    params = quickly(low.init)(KEY, images)

    @quickly
    def of_both(params):
        return [
            (*jax.value_and_grad(loss.value)(params, images, labels), sums)
            for loss in (plain, low)
            for sums in [loss.metrics(params, images, labels)]
        ]

    (value, grad, sums), (low_value, low_grad, low_sums) = of_both(params)
    assert float(value) == pytest.approx(float(low_value), rel=1e-2)
    assert value != low_value
    kinds = {leaf.dtype.name for leaf in jax.tree.leaves((value, low_value, low_grad))}
    assert kinds == {"float32"}
    exact, rounded = (trees.ravel(leaves) for leaves in (grad, low_grad))
    assert 1e-5 < float(jnp.linalg.norm(exact - rounded) / jnp.linalg.norm(exact)) < 0.1
    jax.tree.map(np.testing.assert_array_equal, sums, low_sums)
