"""The common shape of theorems: their constants, their conditions and what they give.

A theorem is a function of `Constants` that returns a `Bound`: its right side at the
constants' step and rounds or, for a target, the step and rounds that reach it. A
`Theorem` holds its name, needs and assumptions. A constant that no theorem had before
becomes a field of `Constants`.
"""

import dataclasses
import math
from typing import Any, NamedTuple, NoReturn

from fl_sketch.core import validate
from fl_sketch.core.wire import FLOAT_BITS
from fl_sketch.theory.assumptions import Assumption

UNKNOWN = math.nan
ROUNDING = 1e-9  # of a largest step that was computed in another order
MAY_BE_ZERO = (
    *("spread", "gap", "noise", "deviation", "b1", "b2", "nu"),
    *("dent", "roughness"),
)


@dataclasses.dataclass(frozen=True)
class Constants:
    """What is known of a problem, a sketch and a run; every theorem uses some of it.

    A constant that is not set is unknown (NaN, or 0 for an integer), and a theorem that
    needs it refuses. `dataclasses.replace` changes some of them.

    >>> Constants(smoothness=1.0, operator="srht", d=600, b=100).known()
    {'smoothness': 1.0, 'operator': 'srht', 'd': 600, 'b': 100}

    Attributes:
      smoothness: L: no Hessian of a client's loss has a larger eigenvalue.
      convexity: mu, of strong convexity or of the Polyak-Lojasiewicz condition; lambda
        of Das et al.'s Assumption 1, for which strong convexity is enough.
      distance: the squared distance `|w0 - w*|^2` from the start to the optimum.
      start: f(w0) - f(w*), or no less; of a loss with the lower bound 0, f(w0).
      spread: sigma^2, the mean over clients of `|grad f_c(w*)|^2`.
      gap: Delta, the largest `f_c(w*) - min f_c` of a client.
      gradient: G, a length that no full gradient of a client exceeds.
      intrinsic: the intrinsic dimension I; I L is no less than the sum of the absolute
        eigenvalues of any Hessian.
      noise: sigma: stochastic gradients are sigma-sub-Gaussian, or for Haddadpour et
        al. they are off by sigma^2 at most in squared length, on average.
      deviation: Delta, which noise exceeds with probability exp(-Delta^2 / sigma^2).
      operator: the name of the sketch operator, as configs have it.
      d: the number of parameters.
      b: the number of numbers in a message.
      alpha: the number with `E|R^T R x|^2 <= (1 + alpha) |x|^2`; if unknown, that of
        Song et al.'s Table 1 for the operator. It is omega of Haddadpour et al.
      clients: the number of clients in a round, or its mean.
      steps: K, the number of local steps in a round.
      step: eta, the step size of the clients.
      rounds: T, the number of rounds.
      server_rate: the server's rate, kappa of Chen et al. and gamma of the others.
      b1, b2: beta_1 and beta_2, the decays of AMSGrad's moments.
      eps: epsilon of AMSGrad.
      threshold: C, to which Das et al. clip a client's sum of gradients.
      rho: the privacy term of Das et al., (z / r) sqrt(d / T) for noise z C on the sum
        of r clients in each of T rounds.
      delta: the chance that sketches mislead.
      delta_g: the chance that stochastic gradients do.
      nu: a free number: theorems of Chen et al. fail with a chance of order exp(-nu^2).
      penalty: phi, the weight of a penalty `phi/2 |w - w0|^2` on the loss.
      slope: theta_1 of an attacker's objective: `|grad|^2 >= theta_1^2` times it.
      dent: c of that objective: how far it may be below strong convexity.
      roughness: alpha of that objective: how far its gradient may be above smoothness.
      power: p of that objective, the power of it that `dent` and `roughness` multiply.
    """

    smoothness: float = UNKNOWN
    convexity: float = UNKNOWN
    distance: float = UNKNOWN
    start: float = UNKNOWN
    spread: float = UNKNOWN
    gap: float = UNKNOWN
    gradient: float = UNKNOWN
    intrinsic: float = UNKNOWN
    noise: float = UNKNOWN
    deviation: float = UNKNOWN
    operator: str = ""
    d: int = 0
    b: int = 0
    alpha: float = UNKNOWN
    clients: float = 0
    steps: int = 1
    step: float = UNKNOWN
    rounds: int = 0
    server_rate: float = 1.0
    b1: float = UNKNOWN
    b2: float = UNKNOWN
    eps: float = UNKNOWN
    threshold: float = UNKNOWN
    rho: float = UNKNOWN
    delta: float = 1e-3
    delta_g: float = 1e-3
    nu: float = 1.0
    penalty: float = UNKNOWN
    slope: float = UNKNOWN
    dent: float = UNKNOWN
    roughness: float = UNKNOWN
    power: float = UNKNOWN

    def __post_init__(self):
        """Raises a ValueError for a constant that cannot have its value."""
        for name, value in self.known().items():
            if isinstance(value, str):
                continue
            if not 0 <= value < math.inf:
                msg = f"Expected {name} >= 0 and finite, got {name}={value}."
                raise ValueError(msg)
            if name in ("b1", "b2"):
                validate.below_one(**{name: value})
            if name in ("delta", "delta_g"):
                validate.in_range(0, 1, **{name: value})

    def known(self) -> dict[str, float | str]:
        """Returns the constants that differ from their defaults, by name."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {
            name: value
            for name, value in vars(self).items()
            if value == value and value != defaults[name]  # NaN differs from itself
        }


class Unreachable(ValueError):
    """A theorem says nothing about a target, or about a constant."""


class Bound(NamedTuple):
    """What a theorem gives.

    Attributes:
      theorem: the name of the theorem and its paper.
      constants: the constants, with the step, the rounds and whatever it chooses.
      error: the bound on the error after these rounds.
      assumptions: that without which the theorem says nothing.
      quantity: what the error is, if the name of the theorem does not say it.
      largest: what the squared gradient of no round exceeds; NaN: not stated.
    """

    theorem: str
    constants: Constants
    error: float
    assumptions: tuple[Assumption, ...]
    quantity: str = ""
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
      assumptions: that without which it says nothing.
      quantity: what it bounds, if its name does not say it.
    """

    name: str
    needs: tuple[str, ...]
    assumptions: tuple[Assumption, ...] = ()
    quantity: str = ""

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
                self.refuse(f"{name} >= {least:.6g}", **{name: value})

    def at_most(self, most: float, **named: float) -> None:
        """Raises `Unreachable` unless every named number is at most `most`."""
        for name, value in named.items():
            if value > most * (1 + ROUNDING):
                self.refuse(f"{name} <= {most:.6g}", **{name: value})

    def refuse(self, condition: str, **named: float) -> NoReturn:
        """Raises `Unreachable` for one number, which does not meet a condition."""
        ((name, value),) = named.items()
        msg = f"Expected {condition} ({self.name}), got {name}={value:.6g}."
        raise Unreachable(msg)

    def bound(
        self, constants: Constants, error: float, *more: Assumption, **changes: Any
    ) -> Bound:
        """Returns the `Bound` for the constants with some changes.

        `more` are assumptions with numbers that follow from the constants.
        """
        constants = dataclasses.replace(constants, **changes)
        assumed = (*self.assumptions, *more)
        return Bound(self.name, constants, error, assumed, self.quantity)
