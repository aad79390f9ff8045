"""Texts as arrays of tokens, by a vocabulary made from the training texts or given.

Nothing is downloaded: sentences are split at spaces into words, the text of a play into
characters. A word that is not among the most frequent is `UNKNOWN`, in training too, so
that the embedding of unknown words is trained.

>>> vocabulary([["to", "be", "or", "not", "to", "be"]], 2)
('be', 'to')
"""

import collections
import os
import string
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fl_sketch.core import pretrained, validate
from fl_sketch.data import folder_tokenizer
from fl_sketch.data.examples import FOUND_CLASSES, Examples, Splits
from fl_sketch.data.folder_tokenizer import FolderTokenizer
from fl_sketch.data.tokenizer import (
    ALPHABET,
    CHARACTERS,
    SPECIAL,
    WORDS,
    Table,
    Tokenizer,
)
from fl_sketch.data.tokenizer import words as words

SPEECH = "shakespeare"  # the data set of next characters
FOUND_VOCABULARY = ("vocabulary_file", "")  # an entry of `Splits.learnt`


def encoded(
    splits: Splits, *, length: int, most: int, vocabulary_file: str = ""
) -> Splits:
    """Returns a data set of numbers: texts as tokens, all else as it is.

    A vocabulary that is made from the training texts is marked as learnt.

    Args:
      splits: a data set of images, or of texts in arrays of objects.
      length: the number of tokens of an example.
      most: the size of the vocabulary, with the special tokens.
      vocabulary_file: path of a file with a word in each line; "characters": the 96
        printable ones of ASCII, line ends included; empty: made from the training
        texts.

    Raises:
      FileNotFoundError, ValueError: in one line, for a vocabulary that is not there,
        has a word twice, or does not fit.
    """
    if splits.train.inputs.dtype == np.int32:
        require_tokens(splits, most)
    if splits.train.inputs.dtype != object:
        return splits
    validate.at_least_one(length=length, vocabulary=most)
    if splits.name == SPEECH:
        if vocabulary_file not in ("", CHARACTERS):
            msg = f"Expected vocabulary_file={CHARACTERS} or none with name={SPEECH}, "
            raise ValueError(msg + f"got vocabulary_file={vocabulary_file!r}.")
        numbers = _next_characters(splits, length, ALPHABET if vocabulary_file else ())
    else:
        numbers = _sentences(splits, length, most, vocabulary_file)
    found = () if vocabulary_file else (FOUND_VOCABULARY,)
    return numbers._replace(learnt=(*numbers.learnt, *found))


def require_tokens(splits: Splits, most: int) -> None:
    """Raises for tokens without an embedding, which would become NaN or others."""
    inputs = [part.inputs for part in splits.parts.values()]
    low, high = min(x.min() for x in inputs), max(x.max() for x in inputs)
    if splits.tokenizer:  # all of its tokens may be asked for later
        high = max(high, splits.tokenizer.size - 1)
    if low < 0 or high >= most:
        msg = (
            f"Expected integer inputs to be tokens below vocabulary={most}, and other "
            f"numbers to be floats, got {low} to {high}."
        )
        raise ValueError(msg)


def read_vocabulary(
    path: str | os.PathLike, name: str = "vocabulary_file"
) -> tuple[str, ...]:
    """Returns the words of a file: one in each line, each once.

    Args:
      path: path of the file.
      name: the option that named it, for errors.

    Raises:
      FileNotFoundError, ValueError: in one line, for any other file.
    """
    if not os.path.isfile(path):
        msg = f"Expected {name} to name a file, got {name}={path}."
        raise FileNotFoundError(msg)
    try:
        with open(path, encoding="utf-8") as file:
            known = tuple(line.strip(string.whitespace) for line in file)
    except UnicodeDecodeError:
        msg = f"Expected words in UTF-8, got {name}={path}."
        raise ValueError(msg) from None
    if not known or "" in known or len(set(known)) < len(known):
        msg = f"Expected a word in every line, each once, got {name}={path}."
        raise ValueError(msg)
    for word in known:
        if words(word) != [word]:
            msg = f"Expected words in lower case without spaces, got {word!r} in "
            raise ValueError(msg + f"{name}={path}.")
    return known


def vocabulary(texts: Iterable[Sequence[str]], most: int) -> tuple[str, ...]:
    """Returns the `most` frequent units of texts, or all if there are fewer.

    They are ordered by frequency, and then alphabetically.

    Args:
      texts: sequences of units: words, or characters.
      most: the number of units.
    """
    counts = collections.Counter(unit for text in texts for unit in text)
    return tuple(sorted(counts, key=lambda unit: (-counts[unit], unit))[:most])


def _sentences(splits: Splits, length: int, most: int, vocabulary_file: str) -> Splits:
    """Each text is an example, and keeps its label."""
    kind = CHARACTERS if vocabulary_file == CHARACTERS else WORDS
    if not vocabulary_file:
        texts = map(words, splits.train.inputs)
        known = vocabulary(texts, max(most - SPECIAL, 1))
    else:
        known = ALPHABET if kind == CHARACTERS else read_vocabulary(vocabulary_file)
    table = Table(kind, known, found=not vocabulary_file)
    size = table.size
    if size > most or (size < most and not vocabulary_file):
        texts = vocabulary_file or "the training texts"
        msg = (
            f"Expected vocabulary {'>=' if size > most else '<='} {size}, the units of "
            f"{texts} and {SPECIAL} special tokens, got vocabulary={most}."
        )
        raise ValueError(msg)

    def encode(part: Examples) -> Examples:
        return Examples(table.encode(part.inputs, length), part.targets)

    return splits.map(encode)._replace(tokenizer=table)


def _next_characters(splits: Splits, length: int, known: Sequence[str]) -> Splits:
    """Cuts each speaker's text into examples: the text before each character.

    The target of a place is the character there, its input the one before; the first
    of an example is seen after `START`. Targets of `PAD` do not count.
    """
    train, owners = _pieces(splits.train, length)
    units = tuple(known) or tuple(sorted(set("".join(train))))
    table = Table(CHARACTERS, units, found=not known)

    def examples(pieces):
        made = table.encode(pieces, length + 1)
        return Examples(made[:, :-1], np.ascontiguousarray(made[:, 1:]))

    test = examples(_pieces(splits.test, length)[0])
    return _play(splits, examples(train), test, owners, table)


def _play(
    splits: Splits,
    train: Examples,
    test: Examples,
    owners: np.ndarray,
    tokenizer: Tokenizer,
) -> Splits:
    """Returns a play whose speakers own their examples, and whose classes are tokens.

    Args:
      splits: the play as text.
      train: the examples of the training text.
      test: those of the test text.
      owners: the speaker of each example of training.
      tokenizer: what made the tokens.
    """
    return splits._replace(
        train=train,
        test=test,
        classes=tokenizer.size,
        class_names=(),  # those of the speakers
        owners=owners,
        owner_names=splits.class_names,
        learnt=tuple(pair for pair in splits.learnt if pair != FOUND_CLASSES),
        tokenizer=tokenizer,
    )


def _pieces(examples: Examples, length: int) -> tuple[list[str], np.ndarray]:
    """Returns pieces of each speaker's text, and the speaker of each piece."""
    pieces, owners = [], []
    for speaker, speech in speeches(examples):
        cut = [speech[at : at + length] for at in range(0, len(speech), length)]
        pieces += cut
        owners += [speaker] * len(cut)
    return pieces, np.array(owners, np.int32)


def speeches(examples: Examples) -> Iterator[tuple[int, str]]:
    """Yields the number of each speaker, and all that this speaker says, in lines."""
    for speaker in np.unique(examples.targets):
        yield speaker, "\n".join(examples.inputs[examples.targets == speaker])


def encoded_by_folder(splits: Splits, source: str, *, length: int) -> Splits:
    """Returns a data set of numbers: texts as tokens of a folder, all else as it is.

    Each sentence is an example. The speeches of a play are cut into examples of
    `length` tokens, and the target of each token is the next token.

    Args:
      splits: a data set of images, tokens, or texts in arrays of objects.
      source: the folder, as a path or as hf/FOLDER.
      length: the number of tokens of an example.

    Raises:
      FileNotFoundError, ValueError: in one line, for a folder without a tokenizer that
        fits its model, or for tokens that the model does not have.
    """
    if splits.train.inputs.dtype == np.int32:
        require_tokens(splits, pretrained.read(source).count("vocab_size"))
    if splits.train.inputs.dtype != object:
        return splits
    tokenizer = folder_tokenizer.read(source)
    if splits.name == SPEECH:
        return _next_tokens(splits, tokenizer, length)

    def encode(part: Examples) -> Examples:
        texts = part.inputs.tolist()
        return Examples(tokenizer.encode(texts, length), part.targets)

    return splits.map(encode)._replace(tokenizer=tokenizer)


def _next_tokens(splits: Splits, tokenizer: FolderTokenizer, length: int) -> Splits:
    validate.at_least_one(length=length)
    train, owners = _token_pieces(splits.train, tokenizer, length)
    test, _ = _token_pieces(splits.test, tokenizer, length)
    return _play(splits, train, test, owners, tokenizer)


def _token_pieces(
    play: Examples, tokenizer: FolderTokenizer, length: int
) -> tuple[Examples, np.ndarray]:
    """Returns examples of each speaker's text, and the speaker of each example.

    Every token but the first of a speaker is a target once.
    """
    pieces, owners = [], []
    for speaker, speech in speeches(play):
        tokens = tokenizer.running(speech)
        cut = [tokens[at : at + length + 1] for at in range(0, len(tokens) - 1, length)]
        pieces += cut
        owners += [speaker] * len(cut)
    table = np.full((len(pieces), length + 1), tokenizer.pad, np.int32)
    for row, piece in zip(table, pieces, strict=True):
        row[: len(piece)] = piece
    inputs, targets = map(np.ascontiguousarray, (table[:, :-1], table[:, 1:]))
    return Examples(inputs, targets), np.array(owners, np.int32)
