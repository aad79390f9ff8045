"""Metrics against scikit-learn, whole and in padded batches."""

import jax
import numpy as np
import pytest
from sklearn import metrics as sklearn

from fl_sketch.models.metrics import METRICS
from tests.channels.rounds import quickly

N, CLASSES = 60, 4
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(N, CLASSES)).round(1).astype(np.float32)  # some are equal
LABELS = RANDOM.integers(0, CLASSES, N)
MANY = RANDOM.integers(0, 2, (N, CLASSES))
SHARES = np.asarray(jax.nn.softmax(LOGITS))
NUMBERS = (5 + 3 * LOGITS[:, :2] + RANDOM.normal(size=(N, 2))).astype(np.float32)
GUESSED = (5 + 3 * LOGITS[:, :2]).astype(np.float32)
ERROR = sklearn.mean_squared_error(NUMBERS, GUESSED)
# name: (outputs, targets, what scikit-learn says)
CASES = {
    "accuracy": (LOGITS, LABELS, sklearn.accuracy_score(LABELS, LOGITS.argmax(1))),
    "accuracy of labels": (LOGITS, MANY, 1 - sklearn.hamming_loss(MANY, LOGITS > 0)),
    "perplexity": (LOGITS, LABELS, np.exp(sklearn.log_loss(LABELS, SHARES))),
    "rmse": (GUESSED, NUMBERS, ERROR**0.5),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_scikit_learn_says_whole_and_in_padded_batches(case):
    outputs, targets, expected = CASES[case]
    metric = METRICS[case.split()[0]]
    ones = np.ones(len(outputs), np.float32)
    extra = -len(outputs) % 16

    def batches(x, mode="edge"):
        x = np.pad(x, [(0, extra)] + [(0, 0)] * (x.ndim - 1), mode)
        return x.reshape(-1, 16, *x.shape[1:])

    @quickly
    def both(whole, parts):
        sums = jax.tree.map(lambda leaf: leaf.sum(0), jax.vmap(metric.sums)(*parts))
        return metric.value(metric.sums(*whole)), metric.value(sums)

    padded = batches(outputs), batches(targets), batches(ones, "constant")
    values = both((outputs, targets, ones), padded)
    np.testing.assert_allclose(values, [expected] * 2, rtol=1e-5, atol=1e-5)
