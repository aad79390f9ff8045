"""Parts of a data set: together they are all of it, and no two share a class."""

import numpy as np
import pytest

from fl_sketch.config import inputs
from fl_sketch.data import class_subset, datasets
from fl_sketch.data.examples import Examples, Splits
from tests.run.configs import config_with

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_parts_share_nothing_and_are_the_whole(count):
    whole = datasets.load("digits")
    found = [class_subset.part(whole, f"{n + 1}/{count}") for n in range(count)]
    names = np.array_split(np.arange(10), count)
    for kind in ("train", "test"):
        every = getattr(whole, kind)
        total = 0
        for own, classes in zip(found, names, strict=True):
            part = getattr(own, kind)
            kept = np.isin(every.targets, classes)
            np.testing.assert_array_equal(part.inputs, every.inputs[kept])
            np.testing.assert_array_equal(classes[part.targets], every.targets[kept])
            assert own.classes == len(classes) and part.targets.dtype == np.int32
            total += len(part.targets)
        assert total == len(every.targets)


def test_owners_go_with_their_examples():
    both = Examples(np.arange(6), np.array([0, 1, 2, 3, 2, 3], np.int32))
    splits = Splits("six", both, both, 4, owners=np.arange(6, dtype=np.int32))
    np.testing.assert_array_equal(class_subset.part(splits, "2/2").owners, [2, 3, 4, 5])


def test_a_config_asks_for_a_part():
    splits = inputs.splits_of(config_with(data__part="2/5"), None)
    assert splits.classes == 2 and set(splits.train.targets) == {0, 1}


@pytest.mark.parametrize("said", ["", "2/1", "0/2", "1/0", "half", "1/2/3", "-1/2"])
def test_other_texts_are_refused_before_data_are_read(said):
    with pytest.raises(ValueError, match="Expected part to be all, or 1/2") as caught:
        inputs.check(config_with(data__part=said))
    assert "\n" not in str(caught.value)


def test_what_has_no_classes_or_too_few_has_no_parts():
    whole = datasets.load("digits")
    with pytest.raises(
        ValueError, match="at most 10 parts, the classes, got part='1/11"
    ):
        class_subset.part(whole, "1/11")
    numbers = Examples(np.zeros((3, 2)), np.zeros((3, 1), np.float32))
    with pytest.raises(ValueError, match="one class for each example"):
        class_subset.part(Splits("numbers", numbers, numbers, 1), "1/2")
