"""Which arrays of a model train, in the words of `client.trains`.

"all"; "head", the last layer; a PATTERN, a regular expression that is searched for in
the names of arrays; or lora(rank=8, alpha=16, on=PATTERN), products of two factors that
are added to the arrays which the pattern matches (`transforms.lora`). By +head or
+PATTERN other arrays train too. A name is the path of an array, as "dense1/kernel".

>>> shapes = {"dense1/kernel": (4, 8), "dense1/bias": (8,), "dense2/kernel": (8, 3)}
>>> chosen(parsed("head"), shapes)
Chosen(wholly=('dense2/kernel',), ranks={}, scale=1.0)
>>> chosen(parsed("lora(rank=2, alpha=4, on=dense1)+dense2"), shapes)
Chosen(wholly=('dense2/kernel',), ranks={'dense1/kernel': 2}, scale=2.0)
"""

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fl_sketch.core import shown, validate
from fl_sketch.transforms.lora import is_matrix, matrix_shape

ALL, HEAD = "all", "head"
LORA = re.compile(r"lora\((?P<options>.*?)\)(?:\+(?P<rest>.+))?", re.DOTALL)
OPTIONS = ("rank", "alpha", "on")
# Names of last layers; of numbered ones the last is the head.
HEADS = re.compile(
    r"(?:lm_)?head|classifier|score|logits|output|last|(?:dense|linear|fc)_?(\d*)",
    re.IGNORECASE,
)
_listed = functools.partial(shown.listed, most=12)
Shapes = Mapping[str, Sequence[int]]


class Trains(NamedTuple):
    """What trains, before the names of a model are known.

    Attributes:
      wholly: "all", "head", a pattern, or empty: nothing but factors.
      rank: of factors; 0: there are none.
      alpha: of factors, whose product counts alpha/rank.
      on: the pattern of the matrices that they are added to; empty: all.
    """

    wholly: str = ALL
    rank: int = 0
    alpha: float = 0.0
    on: str = ""


class Chosen(NamedTuple):
    """What trains of a model, by the names of its arrays.

    Attributes:
      wholly: arrays that train themselves.
      ranks: the ranks of the factors that are added to others.
      scale: the factor of their products.
    """

    wholly: tuple[str, ...]
    ranks: dict[str, int]
    scale: float = 1.0


def parsed(text: str) -> Trains:
    """Returns what a text says.

    Raises:
      ValueError: in one line, for a text of another form, a pattern that is none, or a
        rank or an alpha that is not a positive number.
    """
    match = LORA.fullmatch(text.strip())
    if not match:
        if not text.strip() or text.strip().startswith("lora("):
            raise ValueError(_expected(text))
        _require_pattern(text.strip())
        return Trains(text.strip())
    options = dict.fromkeys(OPTIONS, "")
    for part in match["options"].split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in OPTIONS or not value:
            raise ValueError(_expected(text))
        options[name] = value
    rank = _number(text, "rank", options["rank"], int)
    alpha = _number(text, "alpha", options["alpha"] or str(rank), float)
    rest = (match["rest"] or "").strip()
    for pattern in (options["on"], rest):
        _require_pattern(pattern)
    if rest == ALL:
        raise ValueError(_expected(text))
    return Trains(rest, int(rank), alpha, options["on"])


def _expected(text: str) -> str:
    return (
        "Expected trains to be all, head, a pattern of names, or lora(rank=8, "
        f"alpha=16, on=PATTERN) with or without +head or +PATTERN, got trains={text!r}."
    )


def _number(text: str, name: str, value: str, kind: type) -> float:
    try:
        number = kind(value)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        msg = f"Expected a positive {name}=NUMBER in trains, got trains={text!r}."
        raise ValueError(msg)
    return number


def _require_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        msg = f"Expected trains with a regular expression, got {pattern!r}: {error}."
        raise ValueError(msg) from None


def chosen(trains: Trains, shapes: Shapes) -> Chosen:
    """Returns which of a model's arrays train.

    Args:
      shapes: those of the arrays that may train, by their names.

    Raises:
      ValueError: in one line, for a pattern that matches no array or all of them, for
        factors of vectors alone, or for a rank above the shorter side of an array.
    """
    if trains.wholly == ALL:
        return Chosen(tuple(shapes), {})
    wholly = _wholly(trains.wholly, shapes)
    ranks = _ranks(trains, shapes, wholly) if trains.rank else {}
    if not ranks and len(wholly) == len(shapes):
        msg = (
            "Expected trains=all where every array trains, got "
            f"trains={trains.wholly!r}, which matches all of {_listed(shapes)}."
        )
        raise ValueError(msg)
    return Chosen(wholly, ranks, trains.alpha / trains.rank if ranks else 1.0)


def _wholly(pattern: str, shapes: Shapes) -> tuple[str, ...]:
    if not pattern:
        return ()
    if pattern == HEAD:
        return _head(shapes)
    return _matching(pattern, shapes)


def _matching(pattern: str, shapes: Shapes) -> tuple[str, ...]:
    """Returns the names in which a pattern is found."""
    found = tuple(name for name in shapes if re.search(pattern, name))
    if not found:
        near = validate.nearest(pattern, tuple(shapes))
        msg = f"Expected trains to match names of {_listed(shapes)}, got {pattern!r}."
        raise ValueError(msg + near)
    return found


def _layers(names: Iterable[str]) -> dict[str, str]:
    """Returns the outermost layer of each array, below what all names begin with."""
    words = {name: re.split(r"[/.]", name) for name in names}
    shared = len(os.path.commonprefix([*words.values()]))
    return {name: own[min(shared, len(own) - 1)] for name, own in words.items()}


def _head(shapes: Shapes) -> tuple[str, ...]:
    """Returns the names of the last layer's arrays."""
    layers = _layers(shapes)
    found = {one: match for one in layers.values() if (match := HEADS.fullmatch(one))}
    if not found:
        msg = (
            "Expected several layers, one of them called head, classifier, dense or "
            f"the like, with trains=head, got {_listed(shapes)}: name it by a pattern."
        )
        raise ValueError(msg)

    def place(layer: str) -> tuple[bool, int]:
        number = found[layer][1]
        return number is None, int(number or 0)

    last = max(found, key=place)
    return tuple(name for name, layer in layers.items() if layer == last)


def _ranks(trains: Trains, shapes: Shapes, wholly: Sequence[str]) -> dict[str, int]:
    """Returns the ranks of factors, of arrays that do not train themselves."""
    names = _matching(trains.on, shapes)
    found = [name for name in names if is_matrix(name, shapes[name])]
    ranks = {name: trains.rank for name in found if name not in wholly}
    if not ranks:
        msg = (
            "Expected lora(on=PATTERN) in trains to match arrays of two axes or more "
            "that are no bias and do not train themselves, got "
            f"on={trains.on!r}, which matches {_listed(names)}."
        )
        raise ValueError(msg)
    for name in ranks:
        short = min(matrix_shape(tuple(shapes[name])))
        validate.at_most(short, f"the shorter side of {name}", rank=trains.rank)
    return ranks
