"""The privacy guarantee of a run: its plan, its noise, and epsilon by round.

The odometer of a folder has the same type, with the rounds that were released.

>>> plan = accounting.Plan(steps=100, sample=50, population=1000)
>>> given = promised(plan, rounds=100, target_epsilon=2.0, delta=1e-5)
>>> given.private, given.epsilon(100) <= 2.0
(True, True)
>>> promised(plan, rounds=100, noise_multiplier=1.0, target_epsilon=2.0, \
delta=1e-5).rounds
20
"""

import bisect
import decimal
import math
from typing import Any, NamedTuple

from fl_sketch.privacy import accounting

LEAST = 1e-3  # with less noise, or such a target, numbers overflow
RANDOMNESS = {"system": "system", "seed": "simulated"}  # its name in tables


class Guarantee(NamedTuple):
    """The privacy guarantee of a run.

    Attributes:
      plan: all rounds that the noise is for; in an odometer, the released rounds.
      noise_multiplier: z; 0: messages are bounded, without a guarantee.
      rounds: the last round of the run.
      per_round: steps of the plan in a round.
      unit: "client" or "example".
      randomness: "system", or "simulated" if all noise follows from the seed.
      public: whether the data are public, so that no client has to be protected.
      partition: a name of which client has which examples.
        A digest of the shares would confirm guesses about a label that decides them.
      secret: a check value of the secret from which noise is drawn; empty: none.
    """

    plan: accounting.Plan
    noise_multiplier: float
    delta: float
    accountant: str
    rounds: int
    per_round: int = 1
    unit: str = "client"
    randomness: str = "system"
    public: bool = False
    partition: str = ""
    secret: str = ""

    @property
    def private(self) -> bool:
        """Whether there is noise."""
        return bool(self.noise_multiplier)

    def after(self, rounds: int) -> "Guarantee":
        """Returns the guarantee of the first `rounds`, as an odometer has it."""
        return self._replace(plan=self.plan._replace(steps=rounds * self.per_round))

    def epsilon(self, rounds: int) -> float | None:
        """Returns the epsilon after so many `rounds`; None without noise."""
        return self.after(rounds).spent() if self.private else None

    def spent(self) -> float:
        """Returns the epsilon of all steps of the plan."""
        return accounting.epsilon(
            self.plan,
            self.noise_multiplier,
            delta=self.delta,
            accountant=self.accountant,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """Returns what a summary holds of it."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "releases": self.plan.releases * self.per_round,  # in a round
            "privacy_unit": self.unit,
            "relation": self.plan.relation,
            "accountant": self.accountant,
            "randomness": self.randomness,
        }


def promised(
    plan: accounting.Plan,
    *,
    rounds: int,
    delta: float,
    noise_multiplier: float = 0.0,
    target_epsilon: float = 0.0,
    accountant: str = "auto",
    per_round: int = 1,
    **about: Any,
) -> Guarantee:
    """Returns the guarantee of a run; a target alone determines its noise.

    Args:
      plan: the plan of all rounds that the noise is made for.
      rounds: the last round that was asked for. With noise and a target the run ends
        before the target is exceeded.
      accountant: one of `accounting.ACCOUNTANTS`; "auto": the tightest.
    """
    if noise_multiplier and not LEAST <= noise_multiplier <= 1 / LEAST**2:
        msg = (
            f"Expected noise_multiplier to be 0 or from {LEAST:g} to "
            f"{1 / LEAST**2:g}, got noise_multiplier={noise_multiplier}."
        )
        raise ValueError(msg)
    name = accounting.accountant_for(plan) if accountant == "auto" else accountant
    z, target = noise_multiplier, target_epsilon
    last = min(rounds, plan.steps // per_round)
    if z or target:
        accounting.require(plan, name)
        accounting.require_delta(plan, delta)
    if target and not z:
        z = accounting.calibrate(plan, epsilon=target, delta=delta, accountant=name)
    whole = Guarantee(plan, z, delta, name, last, per_round, **about)
    if target and noise_multiplier:
        every = range(1, last + 1)
        last = bisect.bisect(every, target, key=lambda n: whole.after(n).spent())
        whole = whole._replace(rounds=last)
    if z and not last:
        least = rounded_up(whole.after(1).spent())
        msg = (
            f"Expected target_epsilon >= {least} (the cost of one round), got "
            f"target_epsilon={target}."
        )
        raise ValueError(msg)
    return whole


def rounded_up(value: float, digits: int = 4) -> str:
    """Returns `value` in so many significant digits, never a smaller number.

    >>> rounded_up(8.00004), rounded_up(7.5), rounded_up(0.0), rounded_up(math.inf)
    ('8.001', '7.5', '0', 'inf')
    """
    if not math.isfinite(value):
        return f"{value:g}"
    return _rounded(value, digits, decimal.ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """Returns a finite `value` in so many significant digits, never a larger number.

    >>> rounded_down(1.00575), rounded_down(7.5)
    ('1.005', '7.5')
    """
    return _rounded(value, digits, decimal.ROUND_FLOOR)


def _rounded(value: float, digits: int, how: str) -> str:
    context = decimal.Context(prec=digits, rounding=how)
    return f"{float(context.create_decimal(repr(float(value)))):.{digits}g}"


def mark(randomness: str) -> str:
    """Returns what follows an epsilon: nothing, or that its noise is simulated."""
    return " (simulated)" * (randomness == RANDOMNESS["seed"])
