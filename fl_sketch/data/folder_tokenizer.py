"""Tokens of pretrained models: by the `tokenizer.json` of their folder.

Texts are cut after a number of tokens, those that begin and end a text included, and
filled up behind them with the padding token.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fl_sketch.core import pretrained, untrusted_files, validate

KIND = "folder"  # in params.json
BLOCK = 8192  # texts that are encoded together


class FolderTokenizer:
    """A tokenizer of a folder, as `tokenizer.Tokenizer` describes it."""

    def __init__(self, text: str, size: int, pad: int):
        """Reads the contents of a `tokenizer.json`, for a model of `size` tokens."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            msg = f"{pretrained.TOKENIZER} needs the package: pip install tokenizers."
            raise ValueError(msg) from None
        self._text, self.size, self.pad = text, size, pad
        self._tokenizer = Tokenizer.from_str(text)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.begin: tuple[int, ...] = tuple(self._tokenizer.encode("").ids[:1])
        added = self._tokenizer.get_added_tokens_decoder()
        all_ = {*self._tokenizer.get_vocab(with_added_tokens=True).values()}
        self.most = 1 + max(all_)  # one more than the largest number of a token
        plain = all_ - {number for number, token in added.items() if token.special}
        self.special: set[int] = {*range(size)} - plain

    def encode(self, texts: Sequence[str], length: int) -> np.ndarray:
        """Returns int32 [texts, length]: tokens, and `pad` up to the length."""
        validate.at_least_one(length=length)
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if length <= special:
            msg = (
                f"Expected length > {special}, for a text's ends, got length={length}."
            )
            raise ValueError(msg)
        self._tokenizer.enable_truncation(length)
        table = np.full((len(texts), length), self.pad, np.int32)
        for start in range(0, len(texts), BLOCK):
            block = [str(text) for text in texts[start : start + BLOCK]]
            for row, found in enumerate(self._tokenizer.encode_batch_fast(block)):
                table[start + row, : len(found.ids)] = found.ids
        return table

    def tokens(self, text: str) -> np.ndarray:
        """Returns all tokens of a text, int32, without those that begin and end one."""
        self._tokenizer.no_truncation()
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(found.ids, np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of tokens, without the special ones."""
        return self._tokenizer.decode([int(token) for token in tokens])

    def to_json(self) -> dict[str, Any]:
        """Returns its record in params.json."""
        return {
            "kind": KIND,
            "size": self.size,
            "padding": self.pad,
            "found_in_training": False,
            "tokenizer": json.loads(self._text),
        }


def of(record: Mapping[str, Any]) -> FolderTokenizer:
    """Returns the tokenizer whose `to_json` a `record` is."""
    text = json.dumps(record["tokenizer"])
    return FolderTokenizer(text, record["size"], record["padding"])


def read(source: str) -> FolderTokenizer:
    """Returns the tokenizer of a folder, given as a path or as hf/FOLDER."""
    folder = pretrained.read(source)
    path = folder.path / pretrained.TOKENIZER
    if not path.is_file():
        msg = f"Expected {folder.path} to have {pretrained.TOKENIZER} for texts."
        raise FileNotFoundError(msg)
    size, pad = folder.count("vocab_size"), pretrained.padding(folder)
    with untrusted_files.reading(path, "to be a tokenizer"):
        found = FolderTokenizer(path.read_text(encoding="utf-8"), size, pad)
        if found.most > size:
            msg = f"{path} has {found.most} tokens, the model vocab_size={size}."
            raise ValueError(msg)
    return found
