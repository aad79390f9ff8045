"""Parts of a data set: together they are all of it, and no two share a class."""

import numpy as np
import pytest

from fl_sketch.data import class_subset, datasets
from fl_sketch.data.examples import Examples, Splits, from_parts
from tests.refusals import refused

pytestmark = pytest.mark.fast


def splits_with(targets):
    """Returns a data set whose inputs are the targets, of classes that it shows."""
    targets = np.array(targets, np.int32)
    part = Examples(targets.astype(np.float32)[:, None], targets)
    owners = np.arange(len(targets), dtype=np.int32)
    return from_parts("own", {"train": part, "test": part}, owners=owners)


@pytest.mark.parametrize("count", [1, 3])
def test_parts_share_nothing_and_are_the_whole(count):
    whole = datasets.load("digits")
    parts = [class_subset.part(whole, f"{n + 1}/{count}") for n in range(count)]
    names = np.array_split(np.arange(10), count)
    for kind in ("train", "test"):
        every = getattr(whole, kind)
        total = 0
        for splits, classes in zip(parts, names, strict=True):
            part = getattr(splits, kind)
            kept = np.isin(every.targets, classes)
            np.testing.assert_array_equal(part.inputs, every.inputs[kept])
            np.testing.assert_array_equal(classes[part.targets], every.targets[kept])
            assert splits.classes == len(classes) and splits.learnt == ()
            total += len(part.targets)
        assert total == len(every.targets)


def test_classes_keep_their_names():
    named = splits_with([0, 1, 2, 3])._replace(class_names=("a", "b", "c", "d"))
    assert class_subset.part(named, "2/2").class_names == ("c", "d")
    assert class_subset.part(named, "2/2", classes=6).class_names == ("d", "4", "5")


def test_classes_are_those_declared_or_else_found_and_marked_as_learnt():
    for text, first in (("1/2", 0), ("2/2", 5)):  # class 2 and others do not occur
        splits = class_subset.part(splits_with([0, 1, 3, 4, 5, 9]), text, classes=10)
        assert splits.classes == 5 and splits.learnt == ()
        values = splits.train.inputs[:, 0] - first
        np.testing.assert_array_equal(splits.train.targets, values)
    splits = class_subset.part(splits_with([0, 1, 3, 4, 5, 9]), "1/2")
    assert splits.learnt == (("part", "1/2"), ("classes", 0))
    np.testing.assert_array_equal(splits.train.inputs[:, 0], [0, 1, 3])
    np.testing.assert_array_equal(splits.train.targets, [0, 1, 2])


NUMBERS = Examples(np.zeros((3, 2)), np.zeros((3, 1), np.float32))


@pytest.mark.parametrize(
    ("splits", "text", "classes", "words"),
    [
        (splits_with([0, 1]), "2/1", 0, "'2/1'"),
        (splits_with([0, 1]), "1/3", 0, "at most 2 parts"),
        (splits_with([0, 1, 2]), "2/2", 9, "none"),
        (Splits("numbers", NUMBERS, NUMBERS, 1), "1/2", 0, "one class"),
    ],
)
def test_what_has_no_such_part_is_refused(splits, text, classes, words):
    with refused(words):
        class_subset.part(splits, text, classes=classes)
