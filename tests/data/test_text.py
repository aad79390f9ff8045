"""Texts become tokens by a vocabulary of words or characters, and tokens texts."""

import json

import numpy as np
import pytest

from fl_sketch.core.tokens import PAD, START, UNKNOWN
from fl_sketch.data import text, tokenizer
from fl_sketch.data.examples import Examples, Splits
from tests.refusals import refused

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


PLAY = splits("shakespeare", ["abc", "xy", "ab"], ["cz", "y"])


def test_every_character_is_predicted_once_from_what_its_speaker_said_before():
    found = text.encoded(PLAY, length=4, most=10)
    # Characters in order: newline, a, b, c, x, y. Speaker 0 says abc, then ab.
    newline, a, b, c, x, y = range(3, 9)
    targets = [[a, b, c, newline], [a, b, 0, 0], [x, y, 0, 0]]
    assert found.train.targets.tolist() == targets
    assert found.train.inputs.tolist() == [[2, a, b, c], [2, a, b, 0], [2, x, y, 0]]
    assert found.owners.tolist() == [0, 0, 1]
    assert found.classes == 9
    assert found.test.targets.tolist() == [[c, UNKNOWN, 0, 0], [y, 0, 0, 0]]


def test_a_vocabulary_that_was_made_of_texts_says_so():
    other = SENTENCES._replace(learnt=(("classes", 0),))
    for splits_, learnt in ((SENTENCES, ()), (PLAY, ()), (other, other.learnt)):
        found = text.encoded(splits_, length=6, most=6)
        assert found.learnt == (*learnt, ("vocabulary_file", ""))
    # Speakers are no classes of the characters that come next.
    play = PLAY._replace(learnt=(("part", "1/2"), ("classes", 0)))
    found = text.encoded(play, length=4, most=10, vocabulary_file="characters")
    assert found.learnt == (("part", "1/2"),)


def test_the_table_of_units_and_the_names_of_speakers_stay_with_the_data():
    found = text.encoded(SENTENCES, length=6, most=6).tokenizer
    assert found == tokenizer.Table("words", ("film", "good", "a"), found=True)
    play = PLAY._replace(class_names=("First Citizen", "JULIET"))
    found = text.encoded(play, length=4, most=10)
    units = tuple("\nabcxy")
    assert found.tokenizer == tokenizer.Table("characters", units, found=True)
    assert found.tokenizer.size == found.classes
    assert found.owner_names == ("First Citizen", "JULIET") and not found.class_names
    for splits_ in (SENTENCES, play):
        fixed = text.encoded(
            splits_, length=4, most=99, vocabulary_file="characters"
        ).tokenizer
        assert fixed == tokenizer.Table("characters", tokenizer.ALPHABET)


def test_tokens_that_a_vocabulary_may_still_make_have_an_embedding():
    few = Examples(np.int32([[3, 4]]), np.zeros(1, np.int32))
    table = tokenizer.Table("words", tuple("abcde"))
    own = Splits("own", few, few, 2, tokenizer=table)
    assert text.encoded(own, length=2, most=8) is own
    with refused("vocabulary=7", "3 to 7"):
        text.encoded(own, length=2, most=7)


def test_a_vocabulary_of_a_file_is_the_files_whatever_the_texts(tmp_path):
    path = tmp_path / "words"
    path.write_text("good\nfilm\nnowhere\n")
    found = text.encoded(SENTENCES, length=4, most=8, vocabulary_file=str(path))
    assert found.learnt == ()
    assert found.train.inputs[0].tolist() == [2, 1, 3, 4]
    new = splits("sst2", ["unheard of"] * 4, ["good"])
    again = text.encoded(new, length=4, most=8, vocabulary_file=str(path))
    assert again.test.inputs.tolist() == [[2, 3, 0, 0]]


@pytest.mark.parametrize(
    ("file", "options", "words"),
    [
        ("", {"length": 0}, "length=0"),
        ("", {"most": 99}, "vocabulary <= 9.*got vocabulary=99"),
        ("characters", {}, "vocabulary >= 99.*got vocabulary=6"),
        ("none", {}, "vocabulary_file=none"),
        (b"good\ngood\n", {}, "each once"),
    ],
    ids=range(5),
)
def test_impossible_vocabularies_are_refused(file, options, words, tmp_path):
    if isinstance(file, bytes):
        (tmp_path / "words").write_bytes(file)
        file = str(tmp_path / "words")
    options = {"length": 6, "most": 6} | options
    with refused(match=words, error=(ValueError, FileNotFoundError)):
        text.encoded(SENTENCES, vocabulary_file=file, **options)


WORDS = tokenizer.Table("words", ("a", "film", "good"), found=True)
CHARACTERS = tokenizer.Table("characters", tokenizer.ALPHABET)


@pytest.mark.parametrize("said", ["", "To be,\n or  not", " a "])
def test_characters_come_back(said):
    (row,) = CHARACTERS.encode([said], len(said) + 3)
    assert row[0] == START and row[-2:].tolist() == [PAD, PAD]
    assert CHARACTERS.decode(row) == said
    np.testing.assert_array_equal(CHARACTERS.tokens(said), row[1:-2])


def test_words_come_back_without_capitals_and_unknown_ones_as_a_mark():
    (row,) = WORDS.encode(["A  good dull FILM"], 9)
    assert row.tolist() == [START, 3, 5, UNKNOWN, 4, PAD, PAD, PAD, PAD]
    assert WORDS.decode(row) == f"a good {tokenizer.UNREADABLE} film"
    assert WORDS.tokens("a dull film").tolist() == [3, UNKNOWN, 4]


def test_characters_that_no_model_was_trained_on_are_refused():
    with refused("['à', 'é']"):
        CHARACTERS.tokens("né, à")


@pytest.mark.parametrize("table", [CHARACTERS, WORDS])
def test_a_table_is_made_again_from_json(table):
    assert tokenizer.of(json.loads(json.dumps(table.to_json()))) == table
    with pytest.raises((KeyError, TypeError)):
        tokenizer.of(table.to_json() | {"units": [1, 2]})
