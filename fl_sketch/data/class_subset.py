"""A part of a data set: some of its classes, or of the people who wrote it.

A model that was trained on one part has not seen the other.

>>> images = np.arange(6)
>>> both = Examples(images, np.array([0, 1, 2, 3, 2, 3], np.int32))
>>> part(Splits("six", both, both, 4), "2/2").train
Examples(inputs=array([2, 3, 4, 5]), targets=array([0, 1, 0, 1], dtype=int32))
"""

import re

import numpy as np

from fl_sketch.data.examples import Examples, Splits

ALL = "all"


def parsed(said: str) -> tuple[int, int] | None:
    """Returns (2, 3) for the second of three parts; None for all.

    Args:
      said: "all", or a text such as "2/3".

    Raises:
      ValueError: in one line, for any other text.
    """
    if said == ALL:
        return None
    found = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", said)
    if not found or int(found[1]) > int(found[2]):
        msg = f"Expected part to be all, or 1/2, the first of two, got part={said!r}."
        raise ValueError(msg)
    return int(found[1]), int(found[2])


def part(splits: Splits, said: str) -> Splits:
    """Returns the examples of some of the classes, numbered from zero.

    What stands for a class is the target, of texts without labels their writer.

    Args:
      splits: the data set, as it was read.
      said: the part, as `parsed` has it: of three the second has the middle third of
        the classes, in their order.

    Raises:
      ValueError: in one line, for data without classes, or fewer classes than parts.
    """
    asked = parsed(said)
    if asked is None:
        return splits
    number, parts = asked
    targets = splits.train.targets
    if targets.ndim != 1 or targets.dtype.kind != "i":
        msg = (
            "Expected one class for each example to take a part of them by, got "
            f"part={said!r} and targets {targets.dtype}{[*targets.shape]}."
        )
        raise ValueError(msg)
    names = np.unique(targets)
    if parts > len(names):
        msg = f"Expected at most {len(names)} parts, the classes, got part={said!r}."
        raise ValueError(msg)
    own = np.array_split(names, parts)[number - 1]

    def of(examples: Examples) -> Examples:
        kept = np.isin(examples.targets, own)
        numbered = np.searchsorted(own, examples.targets[kept]).astype(np.int32)
        return Examples(examples.inputs[kept], numbered)

    kept = np.isin(targets, own)
    return splits._replace(
        **{name: of(examples) for name, examples in splits.measured.items()},
        train=of(splits.train),
        classes=len(own),
        owners=None if splits.owners is None else splits.owners[kept],
    )
