"""Texts become tokens and tokens texts; params.json holds all that this needs."""

import json

import numpy as np
import pytest

from fl_sketch.data import tokenizer
from fl_sketch.data.tokenizer import PAD, SPECIAL, START, UNKNOWN, UNREADABLE, Table

pytestmark = pytest.mark.fast

CHARACTERS = Table("characters", tokenizer.ALPHABET)
WORDS = Table("words", ("a", "film", "good"), found=True)


@pytest.mark.parametrize("text", ["", "To be,\n or  not", " a "])
def test_characters_come_back(text):
    (row,) = CHARACTERS.encode([text], len(text) + 3)
    assert row[0] == START and row[-2:].tolist() == [PAD, PAD]
    assert CHARACTERS.decode(row) == text


def test_words_come_back_without_capitals_and_unknown_ones_as_a_mark():
    (row,) = WORDS.encode(["A  good dull FILM"], 9)
    assert row.tolist() == [START, 3, 5, UNKNOWN, 4, PAD, PAD, PAD, PAD]
    assert WORDS.decode(row) == f"a good {UNREADABLE} film"


def test_what_a_table_lacks_is_said_of_characters_alone():
    assert CHARACTERS.lacking("né, à") == ["à", "é"] and not CHARACTERS.lacking("ne")
    assert WORDS.lacking("a dull film") == []


@pytest.mark.parametrize("table", [CHARACTERS, WORDS])
def test_a_table_is_found_again_by_what_json_holds(table):
    again = tokenizer.of(json.loads(json.dumps(table.described())))
    assert again == table and again.size == len(table.units) + SPECIAL


@pytest.mark.parametrize(
    "record",
    [{}, {"kind": "other"}, {"kind": "words"},
     WORDS.described() | {"units": [1, 2]}],
)  # fmt: skip
def test_another_record_is_none(record):
    with pytest.raises((KeyError, TypeError)):
        tokenizer.of(record)


def test_tokens_are_int32_of_one_length():
    rows = WORDS.encode(["a", "a a a a"], 3)
    np.testing.assert_array_equal(rows, [[START, 3, PAD], [START, 3, 3]])
    assert rows.dtype == np.int32
