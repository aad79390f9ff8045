"""Rows of theorems and measurements."""

import math
from typing import Annotated, NamedTuple

import numpy as np

from fl_sketch.experiments.measurements import Column, Table
from fl_sketch.theory import Bound


class Row(NamedTuple):
    """A theorem, and what was measured.

    Attributes:
      theorem: the paper and the number of the theorem.
      operator: the sketch operator; for Haddadpour et al. the way to read it.
      constants: the constants of the problem and of the run.
      rounds: the number of rounds that the theorem asks for, or was given.
      needed: the number of rounds after which the quantity was below the bound; NaN: it
        has no such rounds, or never was.
      start: the quantity before the first round, or what is known of it without a
        theorem; a bound above it says nothing.
      measured: the same, measured.
      ratio: the bound over it; below 1 the theorem would be wrong.
    """

    theorem: Annotated[str, Column("32")]
    operator: Annotated[str, Column("17")]
    problem: str
    constants: str
    quantity: str
    rounds: Annotated[int, Column("7d")]
    needed: Annotated[float, Column("7g")]
    start: Annotated[float, Column("11.4g")]
    bound: Annotated[float, Column("11.4g")]
    measured: Annotated[float, Column("11.4g")]
    ratio: Annotated[float, Column("8.3g")]


TABLE = Table.of(Row)


def row(
    theorem: str,
    problem: str,
    quantity: str,
    bound: Bound,
    curve: np.ndarray,
    start: float,
    **others: float | str,
) -> Row:
    """Returns the row of a theorem.

    Args:
      curve: the quantity after every round, as measured.
      **others: what is not among the constants: other ones, or the operator.
    """
    known = {"operator": "none"} | bound.constants.known() | others
    operator = str(known["operator"])
    texts = [
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in known.items()
        if name not in ("operator", "rounds")  # columns of their own
    ]
    below = np.flatnonzero(curve <= bound.error)
    needed = float(below[0] + 1) if below.size else math.nan
    measured = float(curve[-1])
    ratio = bound.error / measured if measured else math.inf
    return Row(
        *(theorem, operator, problem, " ".join(texts), quantity, len(curve)),
        *(needed, start, bound.error, measured, ratio),
    )
