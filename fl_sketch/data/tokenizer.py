"""Texts as tokens and back: what a model of texts must keep to be used.

`Table` is a table of characters or of words, and `folder_tokenizer` reads those of
pretrained models. Both have the methods of `Tokenizer` and an entry in `KINDS`, by
which `of` finds them again from what params.json holds.

>>> table = Table("words", ("be", "to"))
>>> table.encode(["to be here"], length=5).tolist()
[[2, 4, 3, 1, 0]]
>>> table.decode([2, 4, 3, 0])
'to be'
>>> of(table.described()) == table
True
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fl_sketch.data import folder_tokenizer

PAD, UNKNOWN, START = 0, 1, 2  # after the end, not in the vocabulary, the beginning
SPECIAL = 3  # tokens that are no units of a text
CHARACTERS, WORDS = "characters", "words"
UNREADABLE = "\ufffd"  # what Unicode has for a character that is not known
ALPHABET = ("\n", *(chr(number) for number in range(32, 127)))


class Tokenizer(Protocol):
    """What turns texts into tokens and back."""

    @property
    def size(self) -> int:
        """The number of tokens, with the special ones."""
        ...

    @property
    def found(self) -> bool:
        """Whether the training texts decided it, so that it tells of them."""
        ...

    @property
    def pad(self) -> int:
        """The token after the end of a text."""
        ...

    @property
    def begin(self) -> tuple[int, ...]:
        """The token that begins every text; empty: none does."""
        ...

    @property
    def special(self) -> Collection[int]:
        """The tokens that are no part of a text."""
        ...

    def encode(self, texts: Sequence[str], length: int) -> np.ndarray:
        """Returns int32 [texts, length]: `begin`, the tokens, `pad` up to the length.

        Tokens beyond the length are left out.
        """
        ...

    def running(self, text: str) -> np.ndarray:
        """Returns the tokens of a text, int32, without special ones around it."""
        ...

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of tokens, with `UNREADABLE` for `UNKNOWN`."""
        ...

    def lacking(self, text: str) -> list[str]:
        """Returns the parts of a text that no model was trained on, as it lacks them.

        A word that is not in a vocabulary is trained on, as `UNKNOWN`.
        """
        ...

    def described(self) -> dict[str, Any]:
        """Returns what params.json holds of it: "kind", one of `KINDS`, and more."""
        ...


class Table(NamedTuple):
    """A tokenizer by a table.

    Attributes:
      kind: `CHARACTERS` or `WORDS`.
      units: the characters or words; the first has the number `SPECIAL`.
      found: whether the training texts decided the units.
    """

    kind: str
    units: tuple[str, ...]
    found: bool = False

    @property
    def size(self) -> int:
        """The number of tokens, with the special ones."""
        return SPECIAL + len(self.units)

    @property
    def pad(self) -> int:
        """The token after the end of a text."""
        return PAD

    @property
    def begin(self) -> tuple[int, ...]:
        """The token that begins every text."""
        return (START,)

    @property
    def special(self) -> Collection[int]:
        """The tokens that are no part of a text."""
        return range(SPECIAL)

    def split(self, text: str) -> Sequence[str]:
        """Returns the characters of a text, or its words."""
        return text if self.kind == CHARACTERS else words(text)

    def encode(self, texts: Iterable[str], length: int) -> np.ndarray:
        """Returns int32 [texts, length], as `tokens` does."""
        return tokens(map(self.split, texts), self.units, length=length)

    def running(self, text: str) -> np.ndarray:
        """Returns the tokens of a text, int32, without `START` and `PAD`."""
        units = self.split(text)
        return tokens([units], self.units, length=len(units) + 1)[0, 1:]

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of tokens, without `START` and `PAD`."""
        texts = {PAD: "", START: "", UNKNOWN: UNREADABLE}
        texts |= dict(enumerate(self.units, start=SPECIAL))
        said = [texts[int(token)] for token in tokens]
        return ("" if self.kind == CHARACTERS else " ").join(filter(None, said))

    def lacking(self, text: str) -> list[str]:
        """Returns the characters of a text that the table lacks; no words."""
        if self.kind == WORDS:
            return []
        return sorted({*text} - {*self.units})

    def described(self) -> dict[str, Any]:
        """Returns what params.json holds of it."""
        special = {"padding": PAD, "unknown": UNKNOWN, "start": START}
        return {
            "kind": self.kind,
            "special": special,
            "first": SPECIAL,
            "found_in_training": self.found,
            "units": list(self.units),
        }


def _table(record: Mapping[str, Any]) -> Table:
    units = tuple(record["units"])
    if not all(isinstance(unit, str) for unit in units):
        msg = "units that are no texts"
        raise TypeError(msg)
    return Table(record["kind"], units, bool(record["found_in_training"]))


KINDS: dict[str, Callable[[Mapping[str, Any]], Tokenizer]] = {
    CHARACTERS: _table,
    WORDS: _table,
    folder_tokenizer.KIND: folder_tokenizer.of,
}


def of(record: Mapping[str, Any]) -> Tokenizer:
    """Returns the tokenizer that `described` a `record`.

    Raises:
      KeyError, TypeError: for any other record.
    """
    return KINDS[record["kind"]](record)


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case, split at spaces.

    Separate punctuation is a word.
    """
    return text.lower().split()


def tokens(
    texts: Iterable[Sequence[str]], known: Sequence[str], *, length: int
) -> np.ndarray:
    """Returns int32 [texts, length]: `START`, the units, and `PAD` up to the length.

    Units beyond the length are left out.

    Args:
      texts: sequences of units: words, or characters.
      known: the vocabulary; its first unit has the number `SPECIAL`.
      length: the number of tokens of a text.
    """
    number = {unit: place for place, unit in enumerate(known, start=SPECIAL)}
    texts = list(texts)
    table = np.full((len(texts), length), PAD, np.int32)
    for row, text in zip(table, texts, strict=True):
        units = [START, *(number.get(unit, UNKNOWN) for unit in text[: length - 1])]
        row[: len(units)] = units
    return table
