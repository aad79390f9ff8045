"""Made-up examples are the same everywhere, and there is something to learn."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fl_sketch.data import datasets

pytestmark = pytest.mark.fast


def test_labels_can_be_learnt_but_not_without_error():
    train, test = datasets.load("synthetic/2000")[1:3]
    flat = [part.inputs.reshape(len(part.inputs), -1) / 255 for part in (train, test)]
    model = LogisticRegression(max_iter=200).fit(flat[0], train.targets)
    assert 0.6 < model.score(flat[1], test.targets) < 0.95
    assert np.bincount(test.targets).min() > 500


def test_the_test_set_does_not_depend_on_how_many_are_trained_on():
    few, many = (datasets.load(f"synthetic/{n}") for n in (10, 300_000))
    for one, other in zip(few.test, many.test, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(many.train.targets) == 300_000
    # Written down once: with any other numbers it is another data set.
    assert many.train.targets[-8:].tolist() == [8, 1, 7, 6, 2, 1, 5, 8]


@pytest.mark.parametrize("name", ["synthetic", "synthetic/0", "synthetic/9999999999"])
def test_a_wrong_number_of_examples_is_one_line(name):
    with pytest.raises(ValueError, match=f"got '{name}'") as caught:
        datasets.load(name)
    assert "\n" not in str(caught.value)
