"""Texts as arrays of tokens, by a vocabulary made from the training texts or given.

Sentences are split at spaces into words, the text of a play into characters; a
pretrained model has its own tokens. A word that is not among the most frequent is
`UNKNOWN`, in training too, so that the embedding of unknown words is trained.

>>> vocabulary([["to", "be", "or", "not", "to", "be"]], 2)
('be', 'to')
"""

import collections
import os
import string
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from fl_sketch.core import pretrained, untrusted_files, validate
from fl_sketch.core.tokens import SPECIAL
from fl_sketch.data import folder_tokenizer
from fl_sketch.data.examples import FOUND_CLASSES, Examples, Splits
from fl_sketch.data.tokenizer import ALPHABET, CHARACTERS, WORDS, Table, Tokenizer
from fl_sketch.data.tokenizer import words as words

SPEECH = "shakespeare"  # the data set of next characters
FOUND_VOCABULARY = ("vocabulary_file", "")  # an entry of `Splits.learnt`


def encoded(
    splits: Splits, *, length: int, most: int, vocabulary_file: str = ""
) -> Splits:
    """Returns a data set of numbers: texts as tokens, all else as it is.

    Args:
      splits: a data set of images, or of texts in arrays of objects.
      length: the number of tokens of an example.
      most: the size of the vocabulary, with the special tokens.
      vocabulary_file: path of a file with a word in each line; "characters": the 96
        printable ones of ASCII, line ends included; empty: made from the training
        texts, which is marked as learnt.
    """
    if splits.train.inputs.dtype == np.int32:
        _require_tokens(splits, most)
    if splits.train.inputs.dtype != object:
        return splits
    validate.at_least_one(length=length, vocabulary=most)
    if not vocabulary_file:
        splits = splits._replace(learnt=(*splits.learnt, FOUND_VOCABULARY))
    if splits.name == SPEECH:
        if vocabulary_file not in ("", CHARACTERS):
            msg = f"name={SPEECH} has vocabulary_file={CHARACTERS} or none, not "
            raise ValueError(msg + f"{vocabulary_file!r}.")
        return _next_characters(splits, length, ALPHABET if vocabulary_file else ())
    kind = CHARACTERS if vocabulary_file == CHARACTERS else WORDS
    if not vocabulary_file:
        texts = map(words, splits.train.inputs)
        known = vocabulary(texts, max(most - SPECIAL, 1))
    else:
        known = ALPHABET if kind == CHARACTERS else read_vocabulary(vocabulary_file)
    table = Table(kind, known, found=not vocabulary_file)
    if table.size > most or (table.size < most and not vocabulary_file):
        texts = vocabulary_file or "the training texts"
        msg = f"Expected vocabulary={table.size}, the units of {texts} and {SPECIAL} "
        raise ValueError(msg + f"special tokens, got vocabulary={most}.")
    return _sentences(splits, table, length)


def encoded_by_folder(splits: Splits, source: str, *, length: int) -> Splits:
    """Returns a data set of numbers: texts as tokens of a folder, all else as it is.

    Each sentence is an example. The speeches of a play are cut into examples of
    `length` tokens, and the target of each token is the next token. The folder,
    `source`, is a path or hf/FOLDER.
    """
    if splits.train.inputs.dtype == np.int32:
        _require_tokens(splits, pretrained.read(source).count("vocab_size"))
    if splits.train.inputs.dtype != object:
        return splits
    tokenizer = folder_tokenizer.read(source)
    if splits.name != SPEECH:
        return _sentences(splits, tokenizer, length)
    validate.at_least_one(length=length)

    def pairs(part: Examples) -> tuple[Examples, np.ndarray]:
        """Every token but the first of a speaker is a target once."""
        pieces, owners = [], []
        for speaker, speech in _speeches(part):
            tokens = tokenizer.tokens(speech)
            starts = range(0, len(tokens) - 1, length)
            pieces += [tokens[at : at + length + 1] for at in starts]
            owners += [speaker] * len(starts)
        table = np.full((len(pieces), length + 1), tokenizer.pad, np.int32)
        for row, piece in zip(table, pieces, strict=True):
            row[: len(piece)] = piece
        return _inputs_and_targets(table), np.array(owners, np.int32)

    return _play(splits, pairs, tokenizer)


def read_vocabulary(
    path: str | os.PathLike, name: str = "vocabulary_file"
) -> tuple[str, ...]:
    """Returns the words of a file, which the option `name` named: one in each line."""
    if not os.path.isfile(path):
        msg = f"Expected {name} to name a file, got {name}={path}."
        raise FileNotFoundError(msg)
    reading = untrusted_files.reading(f"{name}={path}", "to be a text in UTF-8")
    with reading, open(path, encoding="utf-8") as file:
        known = tuple(line.strip(string.whitespace) for line in file)
    if not known or len({*known}) < len(known) or any(words(w) != [w] for w in known):
        msg = f"{name}={path} must have a word in lower case in every line, each once."
        raise ValueError(msg)
    return known


def vocabulary(texts: Iterable[Sequence[str]], most: int) -> tuple[str, ...]:
    """Returns the `most` frequent units of texts, by frequency and alphabet."""
    counts = collections.Counter(unit for text in texts for unit in text)
    return tuple(sorted(counts, key=lambda unit: (-counts[unit], unit))[:most])


def _require_tokens(splits: Splits, most: int) -> None:
    """Raises for tokens without an embedding, which would become NaN or others."""
    inputs = [part.inputs for part in splits.parts.values()]
    low, high = min(x.min() for x in inputs), max(x.max() for x in inputs)
    if splits.tokenizer:  # all of its tokens may be asked for later
        high = max(high, splits.tokenizer.size - 1)
    if low < 0 or high >= most:
        msg = (
            f"Integer inputs are tokens below vocabulary={most}, got {low} to {high}; "
        )
        raise ValueError(msg + "other numbers are floats.")


def _sentences(splits: Splits, tokenizer: Tokenizer, length: int) -> Splits:
    """Each text is an example, and keeps its label."""

    def encode(part: Examples) -> Examples:
        texts = part.inputs.tolist()
        return Examples(tokenizer.encode(texts, length), part.targets)

    return splits.map(encode)._replace(tokenizer=tokenizer)


def _next_characters(splits: Splits, length: int, known: Sequence[str]) -> Splits:
    """Cuts each speaker's text into examples: the text before each character.

    The target of a place is the character there, its input the one before; the first
    of an example is seen after `START`. Targets of `PAD` do not count.
    """
    units = tuple(known)
    if not units:
        speeches = (speech for _, speech in _speeches(splits.train))
        units = tuple(sorted({*"".join(speeches)}))
    table = Table(CHARACTERS, units, found=not known)

    def pairs(part: Examples) -> tuple[Examples, np.ndarray]:
        pieces, owners = [], []
        for speaker, speech in _speeches(part):
            starts = range(0, len(speech), length)
            pieces += [speech[at : at + length] for at in starts]
            owners += [speaker] * len(starts)
        encoded = table.encode(pieces, length + 1)
        return _inputs_and_targets(encoded), np.array(owners, np.int32)

    return _play(splits, pairs, table)


def _inputs_and_targets(tokens: np.ndarray) -> Examples:
    inputs, targets = map(np.ascontiguousarray, (tokens[:, :-1], tokens[:, 1:]))
    return Examples(inputs, targets)


def _speeches(examples: Examples) -> Iterator[tuple[int, str]]:
    """Yields the number of each speaker, and all that this speaker says, in lines."""
    for speaker in np.unique(examples.targets):
        yield speaker, "\n".join(examples.inputs[examples.targets == speaker])


def _play(
    splits: Splits,
    pairs: Callable[[Examples], tuple[Examples, np.ndarray]],
    tokenizer: Tokenizer,
) -> Splits:
    """Returns a play whose speakers own their examples, and whose classes are tokens.

    Of a part, `pairs` returns the examples and the speaker of each.
    """
    train, owners = pairs(splits.train)
    return splits._replace(
        train=train,
        test=pairs(splits.test)[0],
        classes=tokenizer.size,
        class_names=(),  # those of the speakers
        owners=owners,
        owner_names=splits.class_names,
        learnt=tuple(pair for pair in splits.learnt if pair != FOUND_CLASSES),
        tokenizer=tokenizer,
    )
