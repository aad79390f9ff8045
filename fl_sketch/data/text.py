"""Texts as arrays of tokens, by a vocabulary made from the training texts.

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
from collections.abc import Iterable, Sequence

import numpy as np

from fl_sketch import validate
from fl_sketch.data.examples import Examples, Splits

PAD, UNKNOWN, START = 0, 1, 2  # after the end, not in the vocabulary, the beginning
SPECIAL = 3  # tokens that are no units of a text


def encoded(splits: Splits, *, length: int, most: int) -> Splits:
    """Returns a data set of numbers: texts as tokens, all else as it is.

    Args:
      splits: images, or texts in arrays of objects.
      length: tokens of an example.
      most: words in the vocabulary, with the special tokens.
    """
    if splits.train.inputs.dtype != object:
        return splits
    validate.at_least_one(length=length, vocabulary=most)
    if splits.name == "shakespeare":
        return _next_characters(splits, length)
    return _sentences(splits, length, most)


def words(text: str) -> list[str]:
    """Returns the words of a text, and its punctuation where that stands apart."""
    return text.lower().split()


def vocabulary(texts: Iterable[Sequence[str]], most: int) -> tuple[str, ...]:
    """Returns the `most` frequent units, of equally frequent ones the first by name.

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
    """
    number = {unit: place for place, unit in enumerate(known, start=SPECIAL)}
    texts = list(texts)
    table = np.full((len(texts), length), PAD, np.int32)
    for row, text in zip(table, texts, strict=True):
        found = [START, *(number.get(unit, UNKNOWN) for unit in text[: length - 1])]
        row[: len(found)] = found
    return table


def _sentences(splits: Splits, length: int, most: int) -> Splits:
    """Each text is an example, and keeps its label."""
    train, test = ([words(text) for text in s.inputs] for s in splits[1:3])
    known = vocabulary(train, max(most - SPECIAL, 1))
    return splits._replace(
        train=Examples(tokens(train, known, length=length), splits.train.targets),
        test=Examples(tokens(test, known, length=length), splits.test.targets),
    )


def _next_characters(splits: Splits, length: int) -> Splits:
    """Each speaker's text is cut into examples: what stands before each character.

    The target of a place is the character there, its input the one before; the first
    of an example is seen after `START`. Targets of `PAD` do not count.
    """
    train, owners = _cut(splits.train, length)
    test, _ = _cut(splits.test, length)
    known = tuple(sorted(set("".join(train))))

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
