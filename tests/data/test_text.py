"""Texts become tokens: by the training text's own vocabulary, and nothing else."""

import numpy as np
import pytest

from fl_sketch.data import text
from fl_sketch.data.examples import Examples, Splits


def strings(*texts):
    array = np.empty(len(texts), object)
    array[:] = texts
    return array


def splits(name, train, test, classes=2):
    return Splits(
        name,
        Examples(strings(*train), np.arange(len(train), dtype=np.int32) % classes),
        Examples(strings(*test), np.arange(len(test), dtype=np.int32) % classes),
        classes,
    )


SENTENCES = splits(
    "sst2",
    ["a good film", "A bad film", "good , good fun", "film"],
    ["a good bad ugly film of many words", ""],
)


def test_the_most_frequent_words_have_numbers_and_others_share_one():
    found = text.encoded(SENTENCES, length=6, most=6)
    # film 3, good 3, a 2; bad, "," and fun once each are left out.
    film, good, a, unknown, start = 3, 4, 5, 1, 2
    assert found.train.inputs.tolist() == [
        [start, a, good, film, 0, 0],
        [start, a, unknown, film, 0, 0],
        [start, good, unknown, good, unknown, 0],
        [start, film, 0, 0, 0, 0],
    ]
    assert found.test.inputs.tolist() == [
        [start, a, good, unknown, unknown, film],
        [start, 0, 0, 0, 0, 0],
    ]
    assert found.train.inputs.dtype == np.int32
    assert found.train.targets is SENTENCES.train.targets and found.owners is None


def test_images_stay_what_they_are():
    images = SENTENCES._replace(
        train=Examples(np.zeros((2, 3, 3, 1), np.uint8), np.zeros(2, np.int32))
    )
    assert text.encoded(images, length=6, most=6) is images


PLAY = splits("shakespeare", ["abc", "xy", "ab"], ["cz", "y"])


def test_every_character_is_predicted_once_from_what_its_speaker_said_before():
    found = text.encoded(PLAY, length=4, most=10)
    # Characters in order: newline, a, b, c, x, y. Speaker 0 says abc, then ab.
    newline, a, b, c, x, y = range(3, 9)
    assert found.train.targets.tolist() == [
        [a, b, c, newline],
        [a, b, 0, 0],
        [x, y, 0, 0],
    ]
    assert found.train.inputs.tolist() == [
        [2, a, b, c],
        [2, a, b, 0],
        [2, x, y, 0],
    ]
    assert found.owners.tolist() == [0, 0, 1]
    assert found.classes == 9
    assert found.test.targets.tolist() == [[c, text.UNKNOWN, 0, 0], [y, 0, 0, 0]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length": 0, "most": 6}, "length=0"),
        ({"length": 6, "most": 0}, "vocabulary=0"),
        ({"length": 6, "most": 99}, "vocabulary <= 9.*got vocabulary=99"),
    ],
)
def test_impossible_vocabularies_are_refused_in_a_line(options, words):
    with pytest.raises(ValueError, match=words) as caught:
        text.encoded(SENTENCES, **options)
    assert "\n" not in str(caught.value)
