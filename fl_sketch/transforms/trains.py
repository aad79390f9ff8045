"""Which arrays of a model train, in the words of `client.trains`.

"all"; "head", the last layer; a PATTERN, a regular expression that is searched for in
the names of arrays; or lora(rank=8, alpha=16, on=PATTERN), products of two factors that
are added to the arrays which the pattern matches (`transforms.lora`). By +head or
+PATTERN other arrays train too. A name is the path of an array, as "dense1/kernel".

>>> shapes = {"dense1/kernel": (4, 8), "dense1/bias": (8,), "dense2/kernel": (8, 3)}
>>> chosen("head", shapes)
Chosen(wholly=('dense2/kernel',), ranks={}, scale=1.0)
>>> chosen("lora(rank=2, alpha=4, on=dense1)+dense2", shapes)
Chosen(wholly=('dense2/kernel',), ranks={'dense1/kernel': 2}, scale=2.0)
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fl_sketch.core import shown, validate
from fl_sketch.transforms.lora import is_matrix, matrix_shape

ALL, HEAD = "all", "head"
LORA = re.compile(
    r"lora\(\s*rank\s*=\s*(?P<rank>\d+)\s*(?:,\s*alpha\s*=\s*(?P<alpha>[\d.e+]+)\s*)?"
    r"(?:,\s*on\s*=\s*(?P<on>.+?)\s*)?\)(?:\+(?P<rest>.+))?",
    re.DOTALL,
)
# Names of last layers; of numbered ones the last is the head.
HEADS = re.compile(
    r"(?:lm_)?head|classifier|score|logits|output|last|(?:dense|linear|fc)_?(\d*)",
    re.IGNORECASE,
)
Shapes = Mapping[str, Sequence[int]]


class Chosen(NamedTuple):
    """What trains of a model, by the names of its arrays.

    Attributes:
      wholly: arrays that train themselves.
      ranks: the ranks of the factors that are added to others.
      scale: the factor of their products, alpha/rank.
    """

    wholly: tuple[str, ...]
    ranks: dict[str, int]
    scale: float = 1.0


def chosen(trains: str, shapes: Shapes) -> Chosen:
    """Returns which of a model's arrays train; `shapes` are of those that may."""
    text = trains.strip()
    lora = LORA.fullmatch(text)
    if not text or (text.startswith("lora(") and not lora):
        msg = (
            "trains must be all, head, a pattern of names, or lora(rank=8, alpha=16, "
            f"on=PATTERN) with or without +head or +PATTERN, got trains={trains!r}."
        )
        raise ValueError(msg)
    if text == ALL:
        return Chosen(tuple(shapes), {})
    pattern = (lora["rest"] or "") if lora else text
    wholly = _matching(pattern, shapes) if pattern else ()
    if len(wholly) == len(shapes):
        msg = f"trains={trains!r} matches all arrays: use trains=all."
        raise ValueError(msg)
    if not lora:
        return Chosen(wholly, {})
    rank, on = int(lora["rank"]), lora["on"] or ""
    names = _matching(on, shapes)
    matrices = [name for name in names if is_matrix(name, shapes[name])]
    ranks = {name: rank for name in matrices if name not in wholly}
    if not ranks:
        msg = (
            "lora(on=PATTERN) in trains must match arrays of two axes or more that are "
            f"no bias and do not train themselves, got on={on!r}, which matches "
            f"{shown.listed(names, 12)}."
        )
        raise ValueError(msg)
    validate.at_least_one(rank=rank)
    for name in ranks:
        short = min(matrix_shape(tuple(shapes[name])))
        validate.at_most(short, f"the shorter side of {name}", rank=rank)
    alpha = float(lora["alpha"] or rank)
    validate.in_range(0, float("inf"), alpha=alpha)
    return Chosen(wholly, ranks, alpha / rank)


def _matching(pattern: str, shapes: Shapes) -> tuple[str, ...]:
    """Returns the names in which a pattern is found, or those of the last layer."""
    if pattern == HEAD:
        return _head(shapes)
    try:
        found = tuple(name for name in shapes if re.search(pattern, name))
    except re.error as error:
        msg = f"trains has no regular expression, but {pattern!r}: {error}."
        raise ValueError(msg) from None
    if not found:
        names = shown.listed(shapes, 12)
        msg = f"trains must match names of {names}, got {pattern!r}."
        raise ValueError(msg + validate.nearest(pattern, tuple(shapes)))
    return found


def _head(shapes: Shapes) -> tuple[str, ...]:
    """Returns the names of the last layer's arrays."""
    # The outermost layer of each array, below what all names begin with.
    words = {name: re.split(r"[/.]", name) for name in shapes}
    shared = len(os.path.commonprefix([*words.values()]))
    layers = {name: own[min(shared, len(own) - 1)] for name, own in words.items()}
    found = {one: match for one in layers.values() if (match := HEADS.fullmatch(one))}
    if not found:
        msg = (
            "trains=head needs several layers, one of them called head, classifier, "
            f"dense or the like, got {shown.listed(shapes, 12)}: name it by a pattern."
        )
        raise ValueError(msg)
    last = max(found, key=lambda one: (found[one][1] is None, int(found[one][1] or 0)))
    return tuple(name for name, layer in layers.items() if layer == last)
