"""Texts become the tokens of a pretrained model's folder, and are filled up."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer

from fl_sketch.data import folder_tokenizer, text
from tests import pretrained
from tests.data.test_text import SENTENCES, splits
from tests.refusals import refused

PAD, UNKNOWN, CLS, SEP, A, BAD, FILM, FUN, GOOD, WAS = range(10)


@pytest.fixture
def folder(tmp_path):
    pretrained.bert(tmp_path)
    return tmp_path


def test_sentences_begin_and_end_as_the_tokenizer_has_it(folder):
    found = text.encoded_by_folder(SENTENCES, f"hf/{folder}", length=6)
    assert found.train.inputs.tolist() == [
        [CLS, A, GOOD, FILM, SEP, PAD],
        [CLS, A, BAD, FILM, SEP, PAD],
        [CLS, GOOD, UNKNOWN, GOOD, FUN, SEP],
        [CLS, FILM, SEP, PAD, PAD, PAD],
    ]
    # Cut before its end, which it keeps.
    cut = [CLS, A, GOOD, BAD, UNKNOWN, SEP]
    assert found.test.inputs.tolist() == [cut, [CLS, SEP, PAD, PAD, PAD, PAD]]
    assert found.train.inputs.dtype == np.int32
    assert found.train.targets is SENTENCES.train.targets
    assert found.learnt == SENTENCES.learnt  # nothing was found in the texts


def test_a_tokenizers_own_length_and_filling_do_not_count(folder):
    tokens = Tokenizer.from_str(json.dumps(pretrained.tokenizer()))
    tokens.enable_truncation(3)
    tokens.enable_padding(direction="left", pad_id=7, pad_token="fun", length=9)
    (folder / "tokenizer.json").write_text(tokens.to_str())
    found = folder_tokenizer.read(folder)
    row = found.encode(["a good film"], 7).tolist()
    assert row == [[CLS, A, GOOD, FILM, SEP, PAD, PAD]] and found.pad == PAD
    assert found.decode([CLS, A, GOOD, SEP]) == "a good"


def test_every_token_of_a_speaker_but_the_first_is_a_target_once(tmp_path):
    pretrained.llama(tmp_path)
    play = splits("shakespeare", ["a bad film", "fun", "good"], ["was", "a film"])
    found = text.encoded_by_folder(play, f"hf/{tmp_path}", length=2)
    end = 2  # llama's own end of text, since there is no padding token
    # Speaker 0 says "a bad film", then "good"; a line's end is no word here.
    assert found.train.inputs.tolist() == [[A, BAD], [FILM, GOOD]]
    assert found.train.targets.tolist() == [[BAD, FILM], [GOOD, end]]
    assert found.owners.tolist() == [0, 0] and found.classes == 20
    assert found.test.inputs.tolist() == [[A, FILM]]
    assert found.test.targets.tolist() == [[FILM, end]]


def test_a_tokenizer_that_does_not_fit_is_one_line(folder):
    with refused("length > 2", "length=2"):
        text.encoded_by_folder(SENTENCES, f"hf/{folder}", length=2)
    more = [f"word{number}" for number in range(20)]
    many = pretrained.tokenizer(words=(*pretrained.WORDS, *more))
    (folder / "tokenizer.json").write_text(json.dumps(many))
    with refused("size=20", "30"):
        text.encoded_by_folder(SENTENCES, f"hf/{folder}", length=5)
    (folder / "tokenizer.json").unlink()
    with refused("tokenizer.json", str(folder), error=FileNotFoundError):
        text.encoded_by_folder(SENTENCES, f"hf/{folder}", length=6)
