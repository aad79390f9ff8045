"""Metrics against scikit-learn, whole and in padded batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn

from fl_sketch.models import metrics
from fl_sketch.models.metrics import METRICS
from tests.channels.rounds import quickly

N, CLASSES = 60, 4
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(N, CLASSES)).round(1).astype(np.float32)  # some are equal
LABELS = RANDOM.integers(0, CLASSES, N)
MANY = RANDOM.integers(0, 2, (N, CLASSES))
SAID = (LOGITS > 0).astype(int)
NUMBERS = (5 + 3 * LOGITS[:, :2] + RANDOM.normal(size=(N, 2))).astype(np.float32)
GUESSED = (5 + 3 * LOGITS[:, :2]).astype(np.float32)
WIDE = np.tile(LOGITS, 3)
OWN = np.take_along_axis(WIDE, LABELS[:, None], 1)
SHARES = np.asarray(jax.nn.softmax(LOGITS))


def auc(labels, scores):
    return sklearn.roc_auc_score(labels, scores, multi_class="ovr", average="macro")


# name: (outputs, targets, what scikit-learn says)
CASES = {
    "accuracy": (LOGITS, LABELS, sklearn.accuracy_score(LABELS, LOGITS.argmax(1))),
    "accuracy of labels": (LOGITS, MANY, (SAID == MANY).mean()),
    "top5": (WIDE, LABELS, ((WIDE > OWN).sum(1) < 5).mean()),
    "f1": (LOGITS, LABELS, sklearn.f1_score(LABELS, LOGITS.argmax(1), average="macro")),
    "f1 of labels": (LOGITS, MANY, sklearn.f1_score(MANY, SAID, average="macro")),
    "auc": (LOGITS, LABELS, auc(LABELS, SHARES)),
    "auc of labels": (LOGITS, MANY, auc(MANY, LOGITS)),
    "perplexity": (LOGITS, LABELS, np.exp(sklearn.log_loss(LABELS, SHARES))),
    "mae": (GUESSED, NUMBERS, sklearn.mean_absolute_error(NUMBERS, GUESSED)),
    "rmse": (GUESSED, NUMBERS, sklearn.mean_squared_error(NUMBERS, GUESSED) ** 0.5),
    "r2": (
        GUESSED,
        NUMBERS,
        sklearn.r2_score(NUMBERS, GUESSED, multioutput="variance_weighted"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_scikit_learn_says(case):
    outputs, targets, expected = CASES[case]
    metric = METRICS[case.split()[0]]
    found = quickly(lambda *x: metric.value(metric.sums(*x)))
    value = found(outputs, targets, jnp.ones(N))
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_padded_batches_give_the_same(case):
    outputs, targets, expected = CASES[case]
    metric = METRICS[case.split()[0]]

    def batches(x, extra):
        x = np.pad(x, [(0, extra)] + [(0, 0)] * (x.ndim - 1), "edge")
        return x.reshape(-1, 16, *x.shape[1:])

    weights = np.pad(np.ones(N, np.float32), (0, 4)).reshape(-1, 16)
    each = quickly(jax.vmap(metric.sums))(
        batches(outputs, 4), batches(targets, 4), weights
    )
    merge = (
        (lambda x: x.reshape(-1, *x.shape[2:]))
        if metric.whole
        else (lambda x: x.sum(0))
    )
    value = quickly(metric.value)(jax.tree.map(merge, each))
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_a_perfect_ranking_is_worth_one_and_its_reverse_nothing():
    metric, labels = METRICS["auc"], jnp.array([0, 0, 1, 1])
    scores = jnp.array([[4.0, -4], [1, -1], [-1, 1], [-1e-3, 1e-3]])

    def value(scores):
        return metric.value(metric.sums(scores, labels, jnp.ones(4)))

    assert value(scores) == 1 and value(-scores) == 0
    assert value(0 * scores) == 0.5  # all alike


def test_a_class_that_nobody_has_does_not_count():
    labels = np.minimum(LABELS, 2)
    for name in ("f1", "auc"):
        metric = METRICS[name]
        shown = LOGITS[:, :3] if name == "f1" else LOGITS
        found = metric.value(metric.sums(shown, labels, jnp.ones(N)))
        assert np.isfinite(found)
    outputs = np.where(np.arange(CLASSES) == 3, -9, LOGITS)
    f1 = METRICS["f1"]
    found = f1.value(f1.sums(outputs, labels, jnp.ones(N)))
    expected = sklearn.f1_score(labels, outputs.argmax(1), average="macro")
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("names", "targets", "words"),
    [
        (["acuracy"], "classes", "Did you mean 'accuracy'"),
        (["mae"], "classes", "metrics to be one of 'accuracy', 'top5'"),
        (["f1", "f1"], "labels", "once each"),
        ([], "numbers", "once each"),
    ],
)
def test_a_wrong_name_gets_one_line(names, targets, words):
    with pytest.raises(ValueError, match=words):
        metrics.named(names, targets)
