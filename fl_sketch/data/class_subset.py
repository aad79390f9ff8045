"""A part of a data set: some of its classes, or of the people who wrote it.

A model that was trained on one part has not seen the other.
"""

import re

import numpy as np

from fl_sketch.data import examples
from fl_sketch.data.examples import Examples, Splits

ALL = "all"


def parsed(part: str) -> tuple[int, int] | None:
    """Returns (2, 3) for "2/3", the second of three parts; None for "all"."""
    if part == ALL:
        return None
    match = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", part)
    if not match or int(match[1]) > int(match[2]):
        msg = f"Expected part to be all, or 1/2, the first of two, got part={part!r}."
        raise ValueError(msg)
    return int(match[1]), int(match[2])


def part(splits: Splits, text: str, classes: int = 0) -> Splits:
    """Returns the examples of some of the classes, numbered from zero.

    The class is the target; of texts without labels it is the writer. A declared number
    of `classes` of the whole data set decides which they are. With 0, those that occur
    in training are divided, and the part is marked as learnt.
    """
    wanted = parsed(text)
    if wanted is None:
        return splits
    number, parts = wanted
    targets = splits.train.targets
    if targets.ndim != 1 or targets.dtype.kind != "i":
        msg = f"part={text!r} needs one class for each example, got "
        raise ValueError(msg + f"{targets.dtype}{[*targets.shape]}.")
    splits = examples.with_classes(splits, classes)
    learnt = examples.FOUND_CLASSES in splits.learnt
    names = np.unique(targets) if learnt else np.arange(splits.classes)
    if parts > len(names):
        msg = f"Expected at most {len(names)} parts, the classes, got part={text!r}."
        raise ValueError(msg)
    chosen = np.array_split(names, parts)[number - 1]

    def chosen_of(part: Examples) -> Examples:
        kept = np.isin(part.targets, chosen)
        if not kept.any():
            msg = f"Expected examples in train and test of part={text!r}, got none."
            raise ValueError(msg)
        numbered = np.searchsorted(chosen, part.targets[kept]).astype(np.int32)
        return Examples(part.inputs[kept], numbered)

    owners, known = splits.owners, splits.class_names
    named = tuple(examples.name_of(known, place) for place in chosen)
    return splits.map(chosen_of)._replace(
        classes=len(chosen),
        class_names=named if known else (),
        owners=None if owners is None else owners[np.isin(targets, chosen)],
        learnt=(("part", text), *splits.learnt) if learnt else splits.learnt,
    )
