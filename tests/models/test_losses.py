"""The loss against hand arithmetic, weights, padding, and a model that learns."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn import datasets

from fl_sketch import models
from fl_sketch.core import trees
from tests.channels.rounds import quickly

KEY = jax.random.key(0)


class Logits(nn.Module):
    """A model whose only layer adds a bias to its inputs."""

    @nn.compact
    def __call__(self, inputs):
        return inputs + self.param("bias", nn.initializers.zeros, inputs.shape[-1:])


# Probabilities (1/4, 3/4), (1/2, 1/2), (9/10, 1/10).
LOGITS = jnp.log(jnp.array([[1.0, 3.0], [1.0, 1.0], [9.0, 1.0]]))
LABELS = jnp.array([1, 0, 1])
EACH = -np.log([3 / 4, 1 / 2, 1 / 10])
PARAMS = {"bias": jnp.zeros(2)}


def test_the_value_is_the_mean_cross_entropy():
    value = models.classification(Logits()).value(PARAMS, LOGITS, LABELS)
    np.testing.assert_allclose(value, EACH.mean(), rtol=1e-6)
    assert value.shape == () and value.dtype == jnp.float32


def test_weights_make_a_weighted_mean():
    loss = models.classification(Logits())
    value = loss.value(PARAMS, LOGITS, LABELS, jnp.array([2.0, 0.0, 1.0]))
    np.testing.assert_allclose(value, (2 * EACH[0] + EACH[2]) / 3, rtol=1e-6)


def test_label_smoothing_mixes_in_the_uniform_target():
    loss = models.classification(Logits(), label_smoothing=0.2)
    log_p = np.log([[1 / 4, 3 / 4], [1 / 2, 1 / 2], [9 / 10, 1 / 10]])
    target = 0.8 * np.eye(2)[[1, 0, 1]] + 0.1
    expected = -(target * log_p).sum(1).mean()
    np.testing.assert_allclose(loss.value(PARAMS, LOGITS, LABELS), expected, rtol=1e-6)


def test_the_gradient_of_the_decay_is_the_decay_times_the_parameters():
    params = {"bias": jnp.array([2.0, -1.0])}
    plain, decayed = (
        models.classification(Logits(), weight_decay=decay) for decay in (0.0, 0.1)
    )
    g0, g1 = (
        quickly(jax.grad(loss.value))(params, LOGITS, LABELS)["bias"]
        for loss in (plain, decayed)
    )
    np.testing.assert_allclose(g1 - g0, [0.2, -0.1], atol=1e-6)


def test_a_batch_of_padding_alone_moves_nothing():
    loss = models.classification(Logits(), label_smoothing=0.1, weight_decay=0.1)
    params = {"bias": jnp.ones(2)}
    value_and_gradient = quickly(jax.value_and_grad(loss.value))
    value, gradient = value_and_gradient(params, LOGITS, LABELS, jnp.zeros(3))
    assert value == 0
    np.testing.assert_array_equal(gradient["bias"], 0)


def test_metrics_are_sums_and_ignore_smoothing_and_decay():
    loss = models.classification(Logits(), label_smoothing=0.3, weight_decay=1.0)
    sums = loss.metrics(PARAMS, LOGITS, LABELS)
    np.testing.assert_allclose(sums["loss"], EACH.sum(), rtol=1e-6)
    assert sums["accuracy"] == (2, 3)  # argmax takes the first of two
    assert sums["count"] == 3


def test_metrics_of_padded_batches_add_up():
    loss = models.classification(models.mlp(3, hidden=(5,)))
    inputs = jax.random.normal(KEY, (10, 4))
    labels = jnp.arange(10) % 3
    params = quickly(loss.init)(KEY, inputs)
    metrics = quickly(loss.metrics)
    whole = metrics(params, inputs, labels)
    padded = jnp.pad(inputs, ((0, 2), (0, 0))).reshape(3, 4, 4)
    padded_labels = jnp.pad(labels, (0, 2)).reshape(3, 4)
    weights = (jnp.arange(12) < 10).reshape(3, 4)
    parts = [
        metrics(params, *batch)
        for batch in zip(padded, padded_labels, weights, strict=True)
    ]
    total = jax.tree.map(lambda *leaves: sum(leaves), *parts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), total, whole)


def test_weights_of_texts_may_leave_out_the_places():
    loss = models.classification(Logits())
    texts, labels = jnp.stack([LOGITS, 2 * LOGITS]), jnp.stack([LABELS, LABELS])
    assert loss.metrics(PARAMS, texts, labels, jnp.array([1, 0]))["count"] == 3
    first = loss.value(PARAMS, texts, labels, jnp.array([1, 0]))
    np.testing.assert_allclose(first, EACH.mean(), rtol=1e-6)


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_outside_of_the_classes_does_not_pass(label):
    loss = models.classification(Logits())
    assert np.isnan(loss.value(PARAMS, LOGITS, LABELS.at[0].set(label)))


def test_smoothing_and_decay_may_be_swept_in_one_program():
    def value(smoothing, decay):
        loss = models.classification(
            Logits(), label_smoothing=smoothing, weight_decay=decay
        )
        return loss.value({"bias": jnp.ones(2)}, LOGITS, LABELS)

    smoothing, decay = jnp.array([0.0, 0.3]), jnp.array([0.0, 0.5])
    swept = jax.vmap(value)(smoothing, decay)
    alone = [value(float(a), float(b)) for a, b in zip(smoothing, decay, strict=True)]
    np.testing.assert_allclose(swept, alone, rtol=1e-6)


def test_an_mlp_learns_digits_in_a_few_steps():
    digits = datasets.load_digits()
    inputs = jnp.asarray(digits.images[..., None] / 16, jnp.float32)
    labels = jnp.asarray(digits.target)
    loss = models.classification(models.build("mlp", 10, hidden=(32,)))
    optimizer = optax.adam(0.02)
    params = quickly(loss.init)(KEY, inputs[:1])

    def step(carry, _):
        params, state = carry
        gradient = jax.grad(loss.value)(params, inputs, labels)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(params, updates), state), None

    @jax.jit
    def train(params):
        carry = (params, optimizer.init(params))
        return jax.lax.scan(step, carry, None, length=40)[0][0]

    sums = quickly(loss.metrics)(train(params), inputs, labels)
    assert loss.report(sums)["accuracy"] > 0.9


def test_shapes_alone_are_enough_to_start():
    loss = models.classification(models.lenet(10))
    images = jax.ShapeDtypeStruct((1, 28, 28, 1), jnp.float32)
    params = quickly(lambda key: loss.init(key, images))(KEY)
    assert params["conv1"]["kernel"].shape == (5, 5, 1, 6)


class WithCount(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        self.variable("counts", "calls", lambda: jnp.int32(0))
        return nn.Dense(2)(inputs)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: models.classification(Logits(), label_smoothing=1.5),
            ValueError,
            r"\[0, 1\].*label_smoothing=1.5",
        ),
        (
            lambda: models.classification(Logits(), weight_decay=-1),
            ValueError,
            "weight_decay=-1",
        ),
        (
            lambda: models.classification(Logits(), weight_decay=float("nan")),
            ValueError,
            "weight_decay=nan",
        ),
        (
            lambda: models.classification(Logits(), weight_decay="0.1"),
            TypeError,
            "weight_decay='0.1'",
        ),
        (
            lambda: models.classification(WithCount()).init(KEY, LOGITS),
            ValueError,
            "floats beside them at most, got .*counts.*int32",
        ),
        (
            lambda: models.classification(Logits()).init(0, LOGITS),
            TypeError,
            r"jax.random.key\(seed\)",
        ),
        (
            lambda: models.classification(Logits()).value(PARAMS, LOGITS, LABELS[:2]),
            ValueError,
            r"\(3,\).*\(2,\)",
        ),
        (
            lambda: models.classification(Logits()).value(PARAMS, LOGITS, LOGITS[:, 0]),
            ValueError,
            "integer labels.*float32",
        ),
        (
            lambda: models.classification(Logits()).value(
                PARAMS, LOGITS, LABELS, jnp.ones(2)
            ),
            ValueError,
            r"weights.*\(2,\)",
        ),
    ],
)
def test_bad_input_gets_one_line(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mlp", "lenet", "vit"])
def test_in_bfloat16_parameters_gradients_and_losses_stay_float32(name):
    model = models.build(name, 10)
    plain = models.classification(model, weight_decay=0.1)
    low = models.classification(model, weight_decay=0.1, dtype="bfloat16")
    # Rounding moves the winners of some poolings: few examples show it in the gradient.
    images = jax.random.normal(KEY, (64, 16, 16, 1))
    params = quickly(low.init)(KEY, images)

    def made(loss):
        def value(params):
            return loss.value(params, images, jnp.arange(64) % 10)

        return quickly(jax.value_and_grad(value))(params)

    (value, grad), (low_value, low_grad) = made(plain), made(low)
    assert float(value) == pytest.approx(float(low_value), rel=1e-2)
    assert value != low_value
    kinds = {leaf.dtype.name for leaf in jax.tree.leaves((value, low_value, low_grad))}
    assert kinds == {"float32"}
    one, other = (trees.ravel(leaves) for leaves in (grad, low_grad))
    off = float(jnp.linalg.norm(one - other) / jnp.linalg.norm(one))
    assert 1e-5 < off < 0.1


def test_what_is_measured_of_a_model_in_bfloat16_is_that_of_float32():
    model = models.build("mlp", 10)
    images, labels = jax.random.normal(KEY, (4, 6, 6, 1)), jnp.arange(4)
    plain, low = (models.classification(model, dtype=d) for d in models.TYPES)
    params = plain.init(KEY, images)
    same = jax.tree.map(
        lambda one, other: bool(one == other),
        plain.metrics(params, images, labels),
        low.metrics(params, images, labels),
    )
    assert all(jax.tree.leaves(same))


def test_a_type_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="Expected dtype to be .*float32.*bfloat16"):
        models.classification(Logits(), dtype="float16")
