"""What a theorem gives, and what its constants must be."""

import math
from typing import NamedTuple


class Bound(NamedTuple):
    """What a theorem gives."""

    theorem: str
    step: float  # of the clients
    rounds: int
    local_steps: int
    bits: int  # up, of all clients and rounds
    assumptions: tuple[str, ...]


class Unreachable(ValueError):
    """A theorem says nothing of a target, or of a constant."""


def positive(**named: float) -> None:
    """Raises a ValueError for a constant that is not above 0."""
    for name, value in named.items():
        if not 0 < value < math.inf:
            msg = f"Expected {name} > 0 and finite, got {name}={value}."
            raise ValueError(msg)
