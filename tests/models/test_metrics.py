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
WIDE = RANDOM.normal(size=(N, 3 * CLASSES)).astype(np.float32)
SHARES = np.asarray(jax.nn.softmax(LOGITS))


def auc(labels, scores):
    return sklearn.roc_auc_score(labels, scores, multi_class="ovr", average="macro")


# name: (outputs, targets, what scikit-learn says)
CASES = {
    "accuracy": (LOGITS, LABELS, sklearn.accuracy_score(LABELS, LOGITS.argmax(1))),
    "accuracy of labels": (LOGITS, MANY, (SAID == MANY).mean()),
    "top5": (
        WIDE,
        LABELS,
        sklearn.top_k_accuracy_score(LABELS, WIDE, k=5, labels=range(3 * CLASSES)),
    ),
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


def value_of(name, outputs, targets):
    outputs, targets = jnp.asarray(outputs), jnp.asarray(targets)
    metric = METRICS[name]
    return float(metric.value(metric.sums(outputs, targets, jnp.ones(len(outputs)))))


@pytest.mark.parametrize("classes", [2, 4])
def test_a_model_that_is_sure_keeps_its_order(classes):
    random = np.random.default_rng(1)
    labels = random.integers(0, classes, 300)
    logits = random.normal(size=(300, classes)).astype(np.float32)
    logits[np.arange(300), labels] += 1
    logits[:, 0] += 60  # probabilities of one, as far as 32 bits can say
    shares = np.exp(logits - logits.max(1, keepdims=True), dtype=np.float64)
    shares /= shares.sum(1, keepdims=True)
    each = [
        sklearn.roc_auc_score(labels == c, logits[:, c] - _rest(logits, c))
        for c in range(classes)
    ]
    assert value_of("auc", logits, labels) == pytest.approx(np.mean(each), abs=1e-5)


def _rest(logits, c):
    others = np.delete(logits.astype(np.float64), c, 1)
    return np.log(np.exp(others - others.max()).sum(1)) + others.max()


def test_equal_logits_are_no_five_best_and_neither_are_those_that_are_none():
    labels = np.arange(10)
    assert value_of("top5", np.zeros((10, 10)), labels) == 0.5  # as `top_k` has it
    assert value_of("top5", np.full((10, 10), np.nan), labels) == 0


def test_targets_that_are_alike_or_far_from_zero_have_their_share_of_variance():
    same = np.full((1000, 1), 0.1, np.float32)
    assert value_of("r2", same, same) == 1 and value_of("r2", same + 1, same) == 0
    random = np.random.default_rng(2)
    targets = (1e6 + random.normal(size=(20_000, 1))).astype(np.float32)
    guessed = (targets + random.normal(size=(20_000, 1)) / 2).astype(np.float32)
    expected = sklearn.r2_score(targets.astype(float), guessed.astype(float))
    assert value_of("r2", guessed, targets) == pytest.approx(expected, abs=1e-4)


def test_labels_that_nobody_has_or_gets_are_worth_nothing():
    assert value_of("f1", -np.ones((4, 2)), np.zeros((4, 2), np.float32)) == 0


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
