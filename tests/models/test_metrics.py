"""Metrics against scikit-learn, whole and in padded batches."""

import jax
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
FAR = (1e6 + RANDOM.normal(size=(20_000, 1))).astype(np.float32)
NEAR = (FAR + RANDOM.normal(size=(20_000, 1)) / 2).astype(np.float32)
ALIKE = np.full((1000, 1), 0.1, np.float32)
SHARES = np.asarray(jax.nn.softmax(LOGITS))
THREE, NEVER = np.minimum(LABELS, 2), np.where(np.arange(CLASSES) == 3, -9, LOGITS)
SURE = WIDE[:, :CLASSES] + np.float32([60, 0, 0, 0])  # probabilities round to 1


def auc(labels, scores):
    return sklearn.roc_auc_score(labels, scores, multi_class="ovr", average="macro")


def odds(logits, c):
    rest = np.delete(logits.astype(np.float64), c, 1)
    return logits[:, c] - np.log(np.exp(rest - rest.max()).sum(1)) - rest.max()


def auc_of_odds(labels, logits):
    classes = np.unique(labels)
    each = [sklearn.roc_auc_score(labels == c, odds(logits, c)) for c in classes]
    return np.mean(each)


def f1(labels, logits):
    return sklearn.f1_score(labels, logits.argmax(1), average="macro")


# name: (outputs, targets, what scikit-learn says)
CASES = {
    "accuracy": (LOGITS, LABELS, sklearn.accuracy_score(LABELS, LOGITS.argmax(1))),
    "accuracy of labels": (LOGITS, MANY, (SAID == MANY).mean()),
    "top5": (
        WIDE,
        LABELS,
        sklearn.top_k_accuracy_score(LABELS, WIDE, k=5, labels=range(3 * CLASSES)),
    ),
    "top5 of equal logits": (np.zeros((10, 10)), np.arange(10), 0.5),
    "top5 of nan": (np.full((10, 10), np.nan), np.arange(10), 0),
    "f1": (LOGITS, LABELS, f1(LABELS, LOGITS)),
    "f1 of labels": (LOGITS, MANY, sklearn.f1_score(MANY, SAID, average="macro")),
    "f1 without a class": (NEVER, THREE, f1(THREE, NEVER)),
    "f1 of nothing": (-np.ones((4, 2)), np.zeros((4, 2), np.float32), 0),
    "auc": (LOGITS, LABELS, auc(LABELS, SHARES)),
    "auc of labels": (LOGITS, MANY, auc(MANY, LOGITS)),
    "auc without a class": (LOGITS, THREE, auc_of_odds(THREE, LOGITS)),
    "auc of a sure model": (SURE, LABELS, auc_of_odds(LABELS, SURE)),
    "auc of the order": (np.c_[-LABELS, LABELS], LABELS > 1, 1),
    "auc of the reverse": (np.c_[LABELS, -LABELS], LABELS > 1, 0),
    "auc of equal scores": (0 * LOGITS, LABELS, 0.5),
    "perplexity": (LOGITS, LABELS, np.exp(sklearn.log_loss(LABELS, SHARES))),
    "mae": (GUESSED, NUMBERS, sklearn.mean_absolute_error(NUMBERS, GUESSED)),
    "rmse": (GUESSED, NUMBERS, sklearn.mean_squared_error(NUMBERS, GUESSED) ** 0.5),
    "r2": (
        GUESSED,
        NUMBERS,
        sklearn.r2_score(NUMBERS, GUESSED, multioutput="variance_weighted"),
    ),
    "r2 of large numbers": (NEAR, FAR, sklearn.r2_score(*map(np.float64, (FAR, NEAR)))),
    "r2 of equal numbers": (ALIKE, ALIKE, 1),
    "r2 of errors on equal numbers": (ALIKE + 1, ALIKE, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_scikit_learn_says_whole_and_in_padded_batches(case):
    outputs, targets, expected = CASES[case]
    outputs, targets = np.float32(outputs), np.asarray(targets)
    if targets.dtype == bool:
        targets = targets.astype(int)
    metric = METRICS[case.split()[0]]
    ones = np.ones(len(outputs), np.float32)
    extra = -len(outputs) % 16

    def batches(x, mode="edge"):
        x = np.pad(x, [(0, extra)] + [(0, 0)] * (x.ndim - 1), mode)
        return x.reshape(-1, 16, *x.shape[1:])

    def merged(leaf):
        return leaf.reshape(-1, *leaf.shape[2:]) if metric.whole else leaf.sum(0)

    @quickly
    def both(whole, parts):
        sums = jax.tree.map(merged, jax.vmap(metric.sums)(*parts))
        return metric.value(metric.sums(*whole)), metric.value(sums)

    padded = batches(outputs), batches(targets), batches(ones, "constant")
    values = both((outputs, targets, ones), padded)
    np.testing.assert_allclose(values, [expected] * 2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("names", "targets", "words"),
    [
        (["acuracy"], "classes", "Did you mean 'accuracy'"),
        (["mae"], "classes", "'accuracy'.*metrics='mae'"),
        (["f1", "f1"], "labels", "once each.*'f1', 'f1'"),
        ([], "numbers", "once each"),
    ],
)
def test_a_wrong_name_gets_one_line(names, targets, words):
    with pytest.raises(ValueError, match=words):
        metrics.named(names, targets)
