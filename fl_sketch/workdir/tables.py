r"""Tables in Markdown, and their numbers.

>>> print("\n".join(markdown([["a_b", "n|m"], ["90 %", "1 +- 2"]])))
| a_b | n\|m |
| --- | --- |
| 90 % | 1 +- 2 |
"""

import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fl_sketch.core import files

Cells = Sequence[Sequence[str]]  # a head, and then the rows


def markdown(cells: Cells) -> list[str]:
    """Returns the lines of a table in Markdown."""
    head, *rows = cells
    return [
        "| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |"
        for row in (head, ["---"] * len(head), *rows)
    ]


def aligned(cells: Cells) -> list[str]:
    """Returns the lines of a table to print, in columns of at least eight letters."""
    widths = [max(8, *map(len, column)) for column in zip(*cells, strict=True)]
    return ["   " + " ".join(map(str.rjust, row, widths)) for row in cells]


def write(
    folder: pathlib.Path, name: str, cells: Cells, notes: Sequence[str] = ()
) -> None:
    """Writes a table as `name`.md, which ends with the notes."""
    lines = [*markdown(cells), *(f"\n{note}." for note in notes)]
    files.write_text(folder / f"{name}.md", "\n".join(lines) + "\n")


def half_width(values: Sequence[float]) -> float:
    """Returns half of Student's 95 % interval of the mean of `values`.

    It is NaN for a single value, and if a value is not finite.

    >>> round(half_width([1.0, 2.0, 3.0]), 3)
    2.484
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    from scipy import stats  # takes half a second to import

    quantile = stats.t.ppf(0.975, len(values) - 1)
    return float(quantile * statistics.stdev(values) / len(values) ** 0.5)


def shown(value: Any) -> str:
    """Returns a value as short as possible, with a float's first eight digits."""
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def named(values: Mapping[str, Any], between: str = ", ") -> str:
    """Returns keys and their values in one line.

    >>> named({"client.rate": 0.1, "seed": 3})
    'client.rate=0.1, seed=3'
    """
    return between.join(f"{key}={shown(value)}" for key, value in values.items())
