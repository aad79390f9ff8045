"""Data sets by name, and the hook that makes pixels into floats on the device."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from fl_sketch.data import datasets
from fl_sketch.data.examples import Examples, Splits, digests, from_parts, with_classes
from tests.refusals import refused

pytestmark = pytest.mark.fast


def test_digits_are_all_of_scikit_learns_once():
    name, train, test, classes = datasets.load("digits")[:4]
    assert (name, classes) == ("digits", 10)
    assert train.inputs.shape == (1437, 8, 8, 1) and test.inputs.shape == (360, 8, 8, 1)
    assert train.inputs.dtype == np.float32 and train.targets.dtype == np.int32
    assert train.inputs.min() == 0 and train.inputs.max() == 1
    rows = np.concatenate([train.inputs, test.inputs]).reshape(1797, 64)
    assert len(np.unique(rows, axis=0)) == 1797  # the parts share no image
    model = KNeighborsClassifier(1).fit(rows[:1437], train.targets)
    assert model.score(rows[1437:], test.targets) > 0.9  # labels are those of the rows


def test_synthetic_labels_can_be_learnt_but_not_without_error():
    few, many = (datasets.load(f"synthetic/{n}") for n in (2000, 300_000))
    for array, same in zip(few.test, many.test, strict=True):
        np.testing.assert_array_equal(array, same)
    # Written down once: with any other numbers it is another data set.
    assert many.train.targets[-8:].tolist() == [8, 1, 7, 6, 2, 1, 5, 8]
    flat = [part.inputs.reshape(len(part.inputs), -1) / 255 for part in few[1:3]]
    model = LogisticRegression(max_iter=200).fit(flat[0], few.train.targets)
    assert 0.6 < model.score(flat[1], few.test.targets) < 0.95
    assert np.bincount(few.test.targets).min() > 500


def test_declared_classes_are_not_learnt_and_nothing_else_is_forgotten():
    part = Examples(np.zeros((4, 1)), np.array([0, 3, 1, 3], np.int32))
    found = from_parts("x", {"train": part, "test": part})
    assert found.classes == 4 and found.learnt == (("classes", 0),)
    marked = found._replace(learnt=(("vocabulary", "x"), *found.learnt))
    declared = with_classes(marked, 6)
    assert declared.classes == 6 and declared.learnt == (("vocabulary", "x"),)
    assert with_classes(marked, 0) is marked
    numbers = Examples(np.zeros((3, 2)), np.zeros((3, 2), np.float32))
    of_numbers = Splits("numbers", numbers, numbers, 2)
    for splits, text in ((found, "classes >= 4"), (of_numbers, "classes=2")):
        with refused(text):
            with_classes(splits, 3)


def test_digests_are_of_every_array_its_type_shape_and_numbers():
    part = Examples(np.zeros((4, 2), np.float32), np.arange(4, dtype=np.int32))
    splits = Splits("own", part, part, 4, owners=np.arange(4), validation=part)
    found = digests(splits)
    names = {f"{p}_{kind}" for p in splits.parts for kind in Examples._fields}
    assert set(found) == names | {"owners"} and len(names) == 6
    inputs = part.inputs
    for other in (inputs.T, inputs.view(np.int32), inputs.reshape(8), inputs + 1):
        changed = digests(splits._replace(train=part._replace(inputs=other)))
        assert {n for n in found if found[n] != changed[n]} == {"train_inputs"}
