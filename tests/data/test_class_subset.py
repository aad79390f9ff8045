"""Parts of a data set: together they are all of it, and no two share a class."""

import numpy as np
import pytest

from fl_sketch.config import parse
from fl_sketch.data import class_subset, datasets
from fl_sketch.data.examples import Examples, Splits, from_parts
from tests.refusals import refused
from tests.run.configs import config_with

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
            assert splits.classes == len(classes) and part.targets.dtype == np.int32
            assert splits.learnt == ()
            total += len(part.targets)
        assert total == len(every.targets)


def test_classes_keep_their_names():
    named = splits_with([0, 1, 2, 3])._replace(class_names=("a", "b", "c", "d"))
    assert class_subset.part(named, "2/2").class_names == ("c", "d")
    assert class_subset.part(named, "all").class_names == named.class_names
    more = class_subset.part(named, "2/2", classes=6)
    assert more.class_names == ("d", "4", "5")


def test_one_example_more_does_not_renumber_declared_classes():
    missing, whole = [0, 1, 3, 4, 5, 9], [0, 1, 2, 3, 4, 5, 9]
    for text in ("1/2", "2/2"):
        few, all_ = (
            class_subset.part(splits_with(targets), text, classes=10)
            for targets in (missing, whole)
        )
        assert few.classes == all_.classes == 5 and few.learnt == all_.learnt == ()
        for splits in (few, all_):
            first = 0 if text == "1/2" else 5
            values = splits.train.inputs[:, 0] - first
            np.testing.assert_array_equal(splits.train.targets, values)


def test_classes_that_are_found_are_marked_as_learnt():
    splits = class_subset.part(splits_with([0, 1, 3, 4, 5, 9]), "1/2")
    assert splits.learnt == (("part", "1/2"), ("classes", 0))
    np.testing.assert_array_equal(splits.train.inputs[:, 0], [0, 1, 3])
    np.testing.assert_array_equal(splits.train.targets, [0, 1, 2])


@pytest.mark.parametrize("text", ["2/1", "half"])
def test_other_texts_are_refused_before_data_are_read(text):
    with refused(match="part to be all, or 1/2"):
        parse.check(config_with(data__part=text))


def test_what_has_no_classes_or_too_few_has_no_parts():
    with refused("at most 10 parts", "part='1/11'"):
        class_subset.part(datasets.load("digits"), "1/11")
    with refused("part='2/2'", "none"):
        class_subset.part(splits_with([0, 1, 2]), "2/2", classes=9)
    numbers = Examples(np.zeros((3, 2)), np.zeros((3, 1), np.float32))
    with refused("one class for each example"):
        class_subset.part(Splits("numbers", numbers, numbers, 1), "1/2")
