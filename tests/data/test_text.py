"""Texts become tokens by a vocabulary of words or characters, and tokens texts."""

import json

import numpy as np
import pytest

from fl_sketch.core.tokens import PAD, START, UNKNOWN
from fl_sketch.data import text, tokenizer
from fl_sketch.data.examples import Examples, Splits
from tests.refusals import refused

pytestmark = pytest.mark.fast


def splits(name, train, test):
    def part(texts):
        return Examples(np.array(texts, object), np.arange(len(texts), dtype="i4") % 2)

    return Splits(name, part(train), part(test), 2)


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
    words = tokenizer.Table("words", ("film", "good", "a"), found=True)
    assert found.tokenizer == words


PLAY = splits("shakespeare", ["abc", "xy", "ab"], ["cz", "y"])


def test_every_character_is_predicted_once_from_what_its_speaker_said_before():
    play = PLAY._replace(class_names=("First Citizen", "JULIET"))
    found = text.encoded(play, length=4, most=10)
    # Characters in order: newline, a, b, c, x, y. Speaker 0 says abc, then ab.
    newline, a, b, c, x, y = range(3, 9)
    targets = [[a, b, c, newline], [a, b, 0, 0], [x, y, 0, 0]]
    assert found.train.targets.tolist() == targets
    assert found.train.inputs.tolist() == [[2, a, b, c], [2, a, b, 0], [2, x, y, 0]]
    assert found.owners.tolist() == [0, 0, 1]
    assert found.test.targets.tolist() == [[c, UNKNOWN, 0, 0], [y, 0, 0, 0]]
    assert found.tokenizer == tokenizer.Table("characters", tuple("\nabcxy"), True)
    assert found.classes == found.tokenizer.size == 9
    assert found.owner_names == ("First Citizen", "JULIET") and not found.class_names


def test_a_vocabulary_that_was_made_of_texts_says_so():
    other = SENTENCES._replace(learnt=(("classes", 0),))
    for splits_, learnt in ((SENTENCES, ()), (PLAY, ()), (other, other.learnt)):
        found = text.encoded(splits_, length=6, most=6)
        assert found.learnt == (*learnt, ("vocabulary_file", ""))
    # Speakers are no classes of the characters that come next.
    play = PLAY._replace(learnt=(("part", "1/2"), ("classes", 0)))
    for splits_, learnt in ((play, (("part", "1/2"),)), (SENTENCES, ())):
        options = {"length": 4, "most": 99, "vocabulary_file": "characters"}
        found = text.encoded(splits_, **options)
        assert found.learnt == learnt
        assert found.tokenizer == tokenizer.Table("characters", tokenizer.ALPHABET)


def test_a_vocabulary_of_a_file_is_the_files_whatever_the_texts(tmp_path):
    path = tmp_path / "words"
    path.write_text("good\nfilm\nnowhere\n")
    found = text.encoded(SENTENCES, length=4, most=8, vocabulary_file=str(path))
    assert found.learnt == ()
    assert found.train.inputs[0].tolist() == [2, 1, 3, 4]


WORDS = tokenizer.Table("words", ("a", "film", "good"), found=True)
CHARACTERS = tokenizer.Table("characters", tokenizer.ALPHABET)


def test_texts_come_back_but_for_capitals_and_unknown_words():
    for said in ("", "To be,\n or  not", " a "):
        (row,) = CHARACTERS.encode([said], len(said) + 3)
        assert row[0] == START and row[-2:].tolist() == [PAD, PAD]
        assert CHARACTERS.decode(row) == said
        np.testing.assert_array_equal(CHARACTERS.tokens(said), row[1:-2])
    (row,) = WORDS.encode(["A  good dull FILM"], 9)
    assert row.tolist() == [START, 3, 5, UNKNOWN, 4, PAD, PAD, PAD, PAD]
    assert WORDS.decode(row) == f"a good {tokenizer.UNREADABLE} film"
    assert WORDS.tokens("a dull film").tolist() == [3, UNKNOWN, 4]
    with refused("['à', 'é']"):
        CHARACTERS.tokens("né, à")


@pytest.mark.parametrize("table", [CHARACTERS, WORDS])
def test_a_table_is_made_again_from_json(table):
    assert tokenizer.of(json.loads(json.dumps(table.to_json()))) == table
    with pytest.raises((KeyError, TypeError)):
        tokenizer.of(table.to_json() | {"units": [1, 2]})
