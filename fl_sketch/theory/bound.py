"""What a theorem gives, and what its constants must be."""

import math
from typing import NamedTuple


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
