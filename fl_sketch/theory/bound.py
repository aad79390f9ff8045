"""What a theorem gives, and what its constants must be."""

import math
from typing import NamedTuple

ROUNDING = 1e-9  # of a largest step that was computed in another order


class Bound(NamedTuple):
    """What a theorem gives.

    Attributes:
      theorem: the name of the theorem and its paper.
      step: the step size of the clients.
      rounds: the number of rounds after which the target is reached.
      local_steps: the number of local steps in a round.
      bits: the bits of all messages up, of all clients and rounds.
      assumptions: sentences, without which the theorem says nothing.
    """

    theorem: str
    step: float
    rounds: int
    local_steps: int
    bits: int
    assumptions: tuple[str, ...]


class Unreachable(ValueError):
    """A theorem says nothing of a target, or of a constant."""


def positive(**named: float) -> None:
    """Raises a ValueError for a constant in `named` that is not above 0 and finite."""
    for name, value in named.items():
        if not 0 < value < math.inf:
            msg = f"Expected {name} > 0 and finite, got {name}={value}."
            raise ValueError(msg)


def no_less(theorem: str, least: float, **named: float) -> None:
    """Raises unless a theorem speaks of values as small as these.

    Args:
      theorem: the name of the theorem, for the complaint.
      least: the smallest value that it speaks of.
      **named: the values, under the names that the complaint is to use.

    Raises:
      Unreachable: for a value below `least`.
    """
    for name, value in named.items():
        if value < least * (1 - ROUNDING):
            msg = f"{theorem} asks for {name} >= {least:.6g}, got {name}={value:.6g}."
            raise Unreachable(msg)


def no_more(theorem: str, most: float, **named: float) -> None:
    """Raises unless a theorem speaks of values as large as these.

    Args:
      theorem: the name of the theorem, for the complaint.
      most: the largest value that it speaks of.
      **named: the values, under the names that the complaint is to use.

    Raises:
      Unreachable: for a value above `most`.
    """
    for name, value in named.items():
        if value > most * (1 + ROUNDING):
            msg = f"{theorem} asks for {name} <= {most:.6g}, got {name}={value:.6g}."
            raise Unreachable(msg)
