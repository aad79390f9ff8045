"""Texts become tokens: by the training text's own vocabulary, and nothing else."""

import numpy as np
import pytest

from fl_sketch.data import text
from fl_sketch.data.examples import Examples, Splits

pytestmark = pytest.mark.fast


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
        ({"length": 6, "most": 3}, "vocabulary >= 4.*got vocabulary=3"),
    ],
)
def test_impossible_vocabularies_are_refused_in_a_line(options, words):
    with pytest.raises(ValueError, match=words) as caught:
        text.encoded(SENTENCES, **options)
    assert "\n" not in str(caught.value)


def test_a_vocabulary_that_was_made_of_texts_says_so():
    other = SENTENCES._replace(learnt=(("classes", 0),))
    for splits_, learnt in ((SENTENCES, ()), (PLAY, ()), (other, other.learnt)):
        found = text.encoded(splits_, length=6, most=6)
        assert found.learnt == (*learnt, ("vocabulary_file", ""))
    # Speakers are no classes of the characters that come next.
    play = PLAY._replace(learnt=(("part", "1/2"), ("classes", 0)))
    found = text.encoded(play, length=4, most=10, vocabulary_file="characters")
    assert found.learnt == (("part", "1/2"),)


def test_a_vocabulary_of_a_file_is_the_files_whatever_the_texts(tmp_path):
    path = tmp_path / "words"
    path.write_text("good\nfilm\nnowhere\n")
    found = text.encoded(SENTENCES, length=4, most=8, vocabulary_file=str(path))
    assert found.learnt == ()
    assert found.train.inputs[0].tolist() == [2, 1, 3, 4]
    new = splits("sst2", ["unheard of"] * 4, ["good"])
    again = text.encoded(new, length=4, most=8, vocabulary_file=str(path))
    assert again.test.inputs.tolist() == [[2, 3, 0, 0]]


def test_characters_are_always_the_same():
    found = text.encoded(SENTENCES, length=6, most=99, vocabulary_file="characters")
    assert found.learnt == ()
    assert found.train.inputs[0].tolist() == [
        2,
        *(3 + text.ALPHABET.index(c) for c in "a goo"),
    ]
    play = text.encoded(PLAY, length=4, most=10, vocabulary_file="characters")
    assert play.learnt == () and play.classes == 99


@pytest.mark.parametrize(
    ("content", "most", "words"),
    [
        (b"good\ngood\n", 9, "each once"),
        (b"good\n\nbad\n", 9, "each once"),
        (b"", 9, "each once"),
        (b"\xff\n", 9, "UTF-8"),
        (b"a\nb\nc\n", 5, "vocabulary >= 6"),
        (None, 9, "to name a file"),
    ],
)
def test_files_that_are_no_vocabulary_are_refused(content, most, words, tmp_path):
    path = tmp_path / "words"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        text.encoded(SENTENCES, length=4, most=most, vocabulary_file=str(path))
    with pytest.raises(ValueError, match="vocabulary >= 99"):
        text.encoded(SENTENCES, length=4, most=9, vocabulary_file="characters")
    with pytest.raises(ValueError, match="characters or none"):
        text.encoded(PLAY, length=4, most=9, vocabulary_file=str(path))
