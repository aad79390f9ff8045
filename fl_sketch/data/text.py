"""Texts as arrays of tokens, by a vocabulary made from the training texts or given.

Nothing is downloaded or learnt: sentences are cut at spaces into words, the text of a
play into characters. A word that is not among the most frequent is `UNKNOWN`, in
training too, so that what the model makes of unknown words is trained.

>>> import numpy as np
>>> known = vocabulary([["to", "be", "or", "not", "to", "be"]], 2)
>>> known
('be', 'to')
>>> tokens([["to", "be", "here"]], known, length=5).tolist()
[[2, 4, 3, 1, 0]]
"""

import collections
import os
import string
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fl_sketch.core import validate
from fl_sketch.data.examples import Examples, Splits

PAD, UNKNOWN, START = 0, 1, 2  # after the end, not in the vocabulary, the beginning
SPECIAL = 3  # tokens that are no units of a text
CHARACTERS = "characters"  # the vocabulary that is no file
ALPHABET = ("\n", *(chr(number) for number in range(32, 127)))
SPEECH = "shakespeare"  # the data set whose characters are foretold


def encoded(
    splits: Splits, *, length: int, most: int, vocabulary_file: str = ""
) -> Splits:
    """Returns a data set of numbers: texts as tokens, all else as it is.

    Args:
      splits: a data set of images, or of texts in arrays of objects.
      length: the number of tokens of an example.
      most: the size of the vocabulary, with the special tokens.
      vocabulary_file: path of a file with a word in each line; "characters": the 96
        printable ones of ASCII, line ends included; empty: made of the training texts.

    Raises:
      FileNotFoundError, ValueError: in one line, for a vocabulary that is not there,
        has a word twice, or does not fit.
    """
    if splits.train.inputs.dtype == np.int32:
        _require_tokens(splits, most)
    if splits.train.inputs.dtype != object:
        return splits
    validate.at_least_one(length=length, vocabulary=most)
    if splits.name == SPEECH:
        if vocabulary_file not in ("", CHARACTERS):
            msg = f"Expected vocabulary_file={CHARACTERS} or none with name={SPEECH}, "
            raise ValueError(msg + f"got vocabulary_file={vocabulary_file!r}.")
        found = _next_characters(splits, length, ALPHABET if vocabulary_file else ())
    else:
        units = list if vocabulary_file == CHARACTERS else words
        known = _given(vocabulary_file, most)
        found = _sentences(splits, length, most, units, known)
    learnt = None if vocabulary_file else ("vocabulary_file", "")
    return found._replace(learnt=learnt)


def _require_tokens(splits: Splits, most: int) -> None:
    """Raises for tokens that no embedding has, which would become NaN or others."""
    parts = [part.inputs for part in (splits.train, *splits.measured.values())]
    low, high = min(p.min() for p in parts), max(p.max() for p in parts)
    if low < 0 or high >= most:
        msg = (
            f"Expected integer inputs to be tokens below vocabulary={most}, and other "
            f"numbers to be floats, got {low} to {high}."
        )
        raise ValueError(msg)


def _given(path: str | os.PathLike, most: int) -> tuple[str, ...]:
    """Returns the words of a file, or all characters; none without either.

    Raises:
      FileNotFoundError, ValueError: in one line.
    """
    if not path:
        return ()
    known = ALPHABET if path == CHARACTERS else _lines(path)
    if len(known) + SPECIAL > most:
        msg = (
            f"Expected vocabulary >= {len(known) + SPECIAL}, the units of {path} and "
            f"{SPECIAL} special tokens, got vocabulary={most}."
        )
        raise ValueError(msg)
    return known


def _lines(path: str | os.PathLike) -> tuple[str, ...]:
    if not os.path.isfile(path):
        msg = f"Expected vocabulary_file to name a file, got vocabulary_file={path}."
        raise FileNotFoundError(msg)
    try:
        with open(path, encoding="utf-8") as file:
            known = tuple(line.strip(string.whitespace) for line in file)
    except UnicodeDecodeError:
        msg = f"Expected words in UTF-8, got vocabulary_file={path}."
        raise ValueError(msg) from None
    if not known or "" in known or len(set(known)) < len(known):
        msg = f"Expected a word in every line, each once, got vocabulary_file={path}."
        raise ValueError(msg)
    return known


def words(text: str) -> list[str]:
    """Returns the words of `text` in lower case: what stands between spaces.

    Punctuation is a word where it stands apart.
    """
    return text.lower().split()


def vocabulary(texts: Iterable[Sequence[str]], most: int) -> tuple[str, ...]:
    """Returns the `most` frequent units of `texts`, sequences of units.

    Of equally frequent ones it takes the first by name. The most frequent comes first.

    Raises:
      ValueError: if there are fewer.
    """
    counts = collections.Counter(unit for text in texts for unit in text)
    if len(counts) < most:
        msg = (
            f"Expected vocabulary <= {len(counts) + SPECIAL}, the words of the "
            f"training texts and {SPECIAL} special tokens, got "
            f"vocabulary={most + SPECIAL}."
        )
        raise ValueError(msg)
    return tuple(sorted(counts, key=lambda unit: (-counts[unit], unit))[:most])


def tokens(
    texts: Iterable[Sequence[str]], known: Sequence[str], *, length: int
) -> np.ndarray:
    """Returns int32 [texts, length]: `START`, the units, and `PAD` up to the length.

    What does not fit is left out.

    Args:
      texts: sequences of units: words, or characters.
      known: the vocabulary; its first unit has the number `SPECIAL`.
      length: the number of tokens of a text.
    """
    number = {unit: place for place, unit in enumerate(known, start=SPECIAL)}
    texts = list(texts)
    table = np.full((len(texts), length), PAD, np.int32)
    for row, text in zip(table, texts, strict=True):
        found = [START, *(number.get(unit, UNKNOWN) for unit in text[: length - 1])]
        row[: len(found)] = found
    return table


def _sentences(
    splits: Splits,
    length: int,
    most: int,
    units: Callable[[str], Sequence[str]],
    known: Sequence[str],
) -> Splits:
    """Each text is an example, and keeps its label."""
    parts = {"train": splits.train, **splits.measured}
    texts = {name: [units(text) for text in own.inputs] for name, own in parts.items()}
    known = known or vocabulary(texts["train"], max(most - SPECIAL, 1))
    return splits._replace(
        **{
            name: Examples(tokens(texts[name], known, length=length), own.targets)
            for name, own in parts.items()
        }
    )


def _next_characters(splits: Splits, length: int, known: Sequence[str]) -> Splits:
    """Each speaker's text is cut into examples: what stands before each character.

    The target of a place is the character there, its input the one before; the first
    of an example is seen after `START`. Targets of `PAD` do not count.
    """
    train, owners = _cut(splits.train, length)
    test, _ = _cut(splits.test, length)
    known = known or tuple(sorted(set("".join(train))))

    def examples(pieces):
        table = tokens(pieces, known, length=length + 1)
        return Examples(table[:, :-1], np.ascontiguousarray(table[:, 1:]))

    return Splits(
        splits.name, examples(train), examples(test), len(known) + SPECIAL, owners
    )


def _cut(examples: Examples, length: int) -> tuple[list[str], np.ndarray]:
    """Returns pieces of what every speaker says, and who said each of them."""
    pieces, owners = [], []
    for speaker in np.unique(examples.targets):
        said = "\n".join(examples.inputs[examples.targets == speaker])
        own = [said[start : start + length] for start in range(0, len(said), length)]
        pieces += own
        owners += [speaker] * len(own)
    return pieces, np.array(owners, np.int32)
