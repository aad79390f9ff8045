"""Texts as tokens and back: what a model of texts must keep to be used.

`Table` is a table of characters or of words, and `folder_tokenizer` reads those of
pretrained models. `of` makes either again from what params.json holds.

>>> table = Table("words", ("be", "to"))
>>> table.encode(["to be here"], length=5).tolist()
[[2, 4, 3, 1, 0]]
>>> table.decode([2, 4, 3, 0])
'to be'
>>> of(table.to_json()) == table
True
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fl_sketch.core.tokens import PAD, SPECIAL, START, UNKNOWN
from fl_sketch.data import folder_tokenizer

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
        """Returns int32 [texts, length]: `begin`, the tokens that fit, and `pad`."""
        ...

    def tokens(self, text: str) -> np.ndarray:
        """Returns all tokens of a text, int32, without those that begin and end one."""
        ...

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of tokens, with `UNREADABLE` for unknown ones."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Returns its record in params.json, from which `of` makes it again."""
        ...


class Table(NamedTuple):
    """A tokenizer by a table.

    Attributes:
      kind: `CHARACTERS` or `WORDS`.
      units: the characters or words; the first has the number `SPECIAL`.
      found: whether the training texts decided the units, so that these tell of them.
    """

    kind: str
    units: tuple[str, ...]
    found: bool = False

    pad = PAD
    begin = (START,)
    special = range(SPECIAL)

    @property
    def size(self) -> int:
        """The number of tokens, with the special ones."""
        return SPECIAL + len(self.units)

    def encode(self, texts: Iterable[str], length: int) -> np.ndarray:
        """Returns int32 [texts, length]: `START`, the units, and `PAD` behind them."""
        split = list if self.kind == CHARACTERS else words
        return encode(map(split, texts), self.units, length=length)

    def tokens(self, text: str) -> np.ndarray:
        """Returns the tokens of a text; see `Tokenizer`."""
        units = list(text) if self.kind == CHARACTERS else words(text)
        if self.kind == CHARACTERS and (lacking := {*units} - {*self.units}):
            msg = f"The vocabulary lacks {sorted(lacking)}."
            raise ValueError(msg)
        return encode([units], self.units, length=len(units) + 1)[0, 1:]

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of tokens, without `START` and `PAD`."""
        texts = {PAD: "", START: "", UNKNOWN: UNREADABLE}
        texts |= dict(enumerate(self.units, start=SPECIAL))
        units = [texts[int(token)] for token in tokens]
        return ("" if self.kind == CHARACTERS else " ").join(filter(None, units))

    def to_json(self) -> dict[str, Any]:
        """Returns its record in params.json."""
        special = {"padding": PAD, "unknown": UNKNOWN, "start": START}
        return {
            "kind": self.kind,
            "special": special,
            "first": SPECIAL,
            "found_in_training": self.found,
            "units": list(self.units),
        }


def of(record: Mapping[str, Any]) -> Tokenizer:
    """Returns the tokenizer whose `to_json` a `record` is."""
    if record["kind"] == folder_tokenizer.KIND:
        return folder_tokenizer.of(record)
    kind, units = record["kind"], tuple(record["units"])
    if kind not in (CHARACTERS, WORDS) or not all(isinstance(u, str) for u in units):
        msg = f"units of {kind!r} that are no texts"
        raise TypeError(msg)
    return Table(kind, units, bool(record["found_in_training"]))


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case, split at spaces."""
    return text.lower().split()


def encode(
    texts: Iterable[Sequence[str]], known: Sequence[str], *, length: int
) -> np.ndarray:
    """Returns int32 [texts, length]: `START`, the units that fit, and `PAD`.

    The first unit of the vocabulary, `known`, has the number `SPECIAL`.
    """
    number = {unit: place for place, unit in enumerate(known, start=SPECIAL)}
    texts = list(texts)
    table = np.full((len(texts), length), PAD, np.int32)
    for row, text in zip(table, texts, strict=True):
        units = [START, *(number.get(unit, UNKNOWN) for unit in text[: length - 1])]
        row[: len(units)] = units
    return table
