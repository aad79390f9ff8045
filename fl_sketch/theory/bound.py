"""The common shape of theorems: their conditions, and what they give.

A theorem is a function of `Constants` that returns a `Bound`: its right side at the
constants' step and rounds or, for a target, the step and rounds that reach it. A
`Theorem` holds its name, needs and assumptions. A constant that no theorem had before
becomes a field of `Constants`.
"""

import dataclasses
import math
from typing import Any, NamedTuple

from fl_sketch.core.wire import FLOAT_BITS
from fl_sketch.theory.constants import MAY_BE_ZERO, Constants

ROUNDING = 1e-9  # of a largest step that was computed in another order


class Unreachable(ValueError):
    """A theorem says nothing about a target, or about a constant."""


class Bound(NamedTuple):
    """What a theorem gives.

    Attributes:
      theorem: the name of the theorem and its paper.
      constants: the constants, with the step, the rounds and whatever it chooses.
      error: the bound on the error after these rounds.
      assumptions: sentences, without which the theorem says nothing.
      largest: what the squared gradient of no round exceeds; NaN: not stated.
    """

    theorem: str
    constants: Constants
    error: float
    assumptions: tuple[str, ...]
    largest: float = math.nan

    @property
    def step(self) -> float:
        """The step size of the clients."""
        return self.constants.step

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.constants.rounds

    @property
    def bits(self) -> int:
        """The bits of all messages up; 0 if their number or length is not known."""
        c = self.constants
        return math.ceil(FLOAT_BITS * c.clients * c.b * c.rounds)


class Theorem(NamedTuple):
    """A theorem, which refuses numbers that it does not speak about.

    Attributes:
      name: its name and paper.
      needs: the names of the constants that it needs.
      assumptions: sentences, without which it says nothing.
    """

    name: str
    needs: tuple[str, ...]
    assumptions: tuple[str, ...] = ()

    def require(
        self, constants: Constants, target: float | None = None, *more: str
    ) -> Constants:
        """Returns the constants, or raises a ValueError for one that is unknown.

        Those that it needs, those of the names in `more` and a target must be above 0,
        or be one of `MAY_BE_ZERO`.
        """
        values = {name: getattr(constants, name) for name in (*self.needs, *more)}
        if target is not None:
            values["target"] = target
        for name, value in values.items():
            zero = name in MAY_BE_ZERO and value == 0
            if not (0 < value < math.inf or zero):
                least = ">= 0" if name in MAY_BE_ZERO else "> 0"
                msg = f"Expected {name} {least} ({self.name}), got {name}={value}."
                raise ValueError(msg)
        return constants

    def require_step(self, constants: Constants, largest: float) -> None:
        """Raises unless the step is known, and at most `largest`."""
        self.require(constants, None, "step")
        self.at_most(largest, step=constants.step)

    def at_least(self, least: float, **named: float) -> None:
        """Raises `Unreachable` unless every named number is at least `least`."""
        for name, value in named.items():
            if value < least * (1 - ROUNDING):
                self._refuse(f"{name} >= {least:.6g}", name, value)

    def at_most(self, most: float, **named: float) -> None:
        """Raises `Unreachable` unless every named number is at most `most`."""
        for name, value in named.items():
            if value > most * (1 + ROUNDING):
                self._refuse(f"{name} <= {most:.6g}", name, value)

    def _refuse(self, condition: str, name: str, value: float) -> None:
        msg = f"Expected {condition} ({self.name}), got {name}={value:.6g}."
        raise Unreachable(msg)

    def bound(self, constants: Constants, error: float, **changes: Any) -> Bound:
        """Returns the `Bound` for the constants with some changes."""
        constants = dataclasses.replace(constants, **changes)
        return Bound(self.name, constants, error, self.assumptions)
