"""Tokens of pretrained models: by the `tokenizer.json` of their folder.

Texts are cut after a number of tokens, the tokenizer's own at the beginning and the end
included, and filled up behind them with the padding token.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fl_sketch.core import pretrained, untrusted_files, validate
from fl_sketch.data import text
from fl_sketch.data.examples import FOUND_CLASSES, Examples, Splits

KIND = "folder"  # of `described`
BLOCK = 8192  # texts that are encoded together


class FolderTokenizer:
    """A tokenizer of a folder.

    Attributes:
      size: the number of tokens that the model has.
      pad: the token after the end of a text.
      found: whether the training texts decided it, which they did not.
    """

    found = False

    def __init__(self, text: str, size: int, pad: int):
        """Reads a tokenizer.

        Args:
          text: the contents of its `tokenizer.json`.
          size: the number of tokens that the model has.
          pad: the token after the end of a text.

        Raises:
          ValueError: in one line, if `text` is no tokenizer, or `tokenizers` is not
            installed.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError:
            msg = (
                f"Expected tokenizers to be installed to read {pretrained.TOKENIZER}: "
                "pip install tokenizers."
            )
            raise ValueError(msg) from None
        self._text, self.size, self.pad = text, size, pad
        self._tokenizer = Tokenizer.from_str(text)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def most(self) -> int:
        """Returns one more than the largest number of a token."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def encode(self, texts: Sequence[str], length: int) -> np.ndarray:
        """Returns int32 [texts, length]: tokens, and `pad` up to the length."""
        validate.at_least_one(length=length)
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if length <= special:
            msg = f"Expected length > {special}, the tokens that begin and end a text, "
            raise ValueError(msg + f"got length={length}.")
        self._tokenizer.enable_truncation(length)
        table = np.full((len(texts), length), self.pad, np.int32)
        for start in range(0, len(texts), BLOCK):
            block = [str(text) for text in texts[start : start + BLOCK]]
            for row, found in enumerate(self._tokenizer.encode_batch_fast(block)):
                table[start + row, : len(found.ids)] = found.ids
        return table

    def running(self, text: str) -> np.ndarray:
        """Returns all tokens of a text, int32, without those that begin and end one."""
        self._tokenizer.no_truncation()
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(found.ids, np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of tokens, without the special ones."""
        return self._tokenizer.decode([int(token) for token in tokens])

    def described(self) -> dict[str, Any]:
        """Returns what is needed to make it again: see `of`."""
        return {
            "kind": KIND,
            "size": self.size,
            "padding": self.pad,
            "found_in_training": False,
            "tokenizer": json.loads(self._text),
        }


def of(record: dict[str, Any]) -> FolderTokenizer:
    """Returns the tokenizer that `described` a `record`."""
    text = json.dumps(record["tokenizer"])
    return FolderTokenizer(text, record["size"], record["padding"])


def read(source: str) -> FolderTokenizer:
    """Returns the tokenizer of a folder, given as a path or as hf/FOLDER.

    Raises:
      FileNotFoundError: for a folder without one.
      ValueError: in one line, for one that cannot be read, or that has tokens without
        an embedding.
    """
    folder = pretrained.read(source)
    path = folder.path / pretrained.TOKENIZER
    if not path.is_file():
        msg = f"Expected {folder.path} to have {pretrained.TOKENIZER} for texts, got "
        raise FileNotFoundError(msg + "none.")
    size, pad = folder.count("vocab_size"), pretrained.padding(folder)
    with untrusted_files.reading(path, "to be a tokenizer"):
        found = FolderTokenizer(path.read_text(encoding="utf-8"), size, pad)
        if found.most() > size:
            msg = (
                f"Expected {path} to have at most vocab_size={size} tokens, as the "
                f"model's config.json says, got {found.most()}."
            )
            raise ValueError(msg)
    return found


def encoded(splits: Splits, source: str, *, length: int) -> Splits:
    """Returns a data set of numbers: texts as tokens of a folder, all else as it is.

    Each sentence is an example. The speeches of a play are cut into examples of
    `length` tokens, and the target of each token is the one that follows it.

    Args:
      splits: a data set of images, tokens, or texts in arrays of objects.
      source: the folder, as a path or as hf/FOLDER.
      length: the number of tokens of an example.

    Raises:
      FileNotFoundError, ValueError: in one line, for a folder without a tokenizer that
        fits its model, or for tokens that the model does not have.
    """
    if splits.train.inputs.dtype == np.int32:
        text.require_tokens(splits, pretrained.read(source).count("vocab_size"))
    if splits.train.inputs.dtype != object:
        return splits
    tokenizer = read(source)
    if splits.name == text.SPEECH:
        return _next_tokens(splits, tokenizer, length)

    def encode(part: Examples) -> Examples:
        return Examples(tokenizer.encode(part.inputs, length), part.targets)

    return splits.map(encode)


def _next_tokens(splits: Splits, tokenizer: FolderTokenizer, length: int) -> Splits:
    validate.at_least_one(length=length)
    train, owners = _pieces(splits.train, tokenizer, length)
    return splits._replace(
        train=train,
        test=_pieces(splits.test, tokenizer, length)[0],
        classes=tokenizer.size,
        owners=owners,
        learnt=tuple(pair for pair in splits.learnt if pair != FOUND_CLASSES),
    )


def _pieces(
    speeches: Examples, tokenizer: FolderTokenizer, length: int
) -> tuple[Examples, np.ndarray]:
    """Returns examples of each speaker's text, and the speaker of each example.

    Every token but the first of a speaker is a target once.
    """
    pieces, owners = [], []
    for speaker, speech in text.speeches(speeches):
        tokens = tokenizer.running(speech)
        cut = [tokens[at : at + length + 1] for at in range(0, len(tokens) - 1, length)]
        pieces += cut
        owners += [speaker] * len(cut)
    table = np.full((len(pieces), length + 1), tokenizer.pad, np.int32)
    for row, piece in zip(table, pieces, strict=True):
        row[: len(piece)] = piece
    inputs, targets = map(np.ascontiguousarray, (table[:, :-1], table[:, 1:]))
    return Examples(inputs, targets), np.array(owners, np.int32)
