"""Texts become tokens: by the training text's own vocabulary, and nothing else."""

import numpy as np
import pytest

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
    assert found.test.targets.tolist() == [[c, tokenizer.UNKNOWN, 0, 0], [y, 0, 0, 0]]


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


def test_characters_are_always_the_same():
    found = text.encoded(SENTENCES, length=6, most=99, vocabulary_file="characters")
    assert found.learnt == ()
    characters = [3 + tokenizer.ALPHABET.index(c) for c in "a goo"]
    assert found.train.inputs[0].tolist() == [2, *characters]
    play = text.encoded(PLAY, length=4, most=10, vocabulary_file="characters")
    assert play.learnt == () and play.classes == 99


@pytest.mark.parametrize("token", [-1, 8])
def test_tokens_without_an_embedding_are_refused(token):
    few, more = (
        Examples(np.int32([[3, last]]), np.zeros(1, np.int32)) for last in (7, token)
    )
    own = Splits("own", few, few, 2)
    assert text.encoded(own, length=2, most=8) is own
    with refused("vocabulary=8", f"{min(3, token)} to {max(7, token)}"):
        text.encoded(own._replace(test=more), length=2, most=8)


@pytest.mark.parametrize(
    ("splits_", "file", "options", "words"),
    [
        (SENTENCES, "", {"length": 0}, "length=0"),
        (SENTENCES, "", {"most": 0}, "vocabulary=0"),
        (SENTENCES, "", {"most": 99}, "vocabulary <= 9.*got vocabulary=99"),
        (SENTENCES, "", {"most": 3}, "vocabulary >= 4.*got vocabulary=3"),
        (SENTENCES, "characters", {}, "vocabulary >= 99.*got vocabulary=6"),
        (PLAY, "words", {}, "characters.*vocabulary_file='words'"),
        (SENTENCES, "none", {}, "vocabulary_file=none"),
        (SENTENCES, b"good\ngood\n", {}, "each once"),
        (SENTENCES, b"good\n\nbad\n", {}, "each once"),
        (SENTENCES, b"", {}, "each once"),
        (SENTENCES, b"good\nBad\n", {}, "lower case .*'Bad'"),
        (SENTENCES, b"\xff\n", {}, "UTF-8"),
        (SENTENCES, b"a\nb\nc\nd\n", {}, "vocabulary >= 7"),
    ],
    ids=range(13),
)
def test_impossible_vocabularies_are_refused(splits_, file, options, words, tmp_path):
    if isinstance(file, bytes):
        (tmp_path / "words").write_bytes(file)
        file = str(tmp_path / "words")
    options = {"length": 6, "most": 6} | options
    with refused(match=words, error=(ValueError, FileNotFoundError)):
        text.encoded(splits_, vocabulary_file=file, **options)
