"""What a run promises: its plan, its noise, and the epsilon of so many rounds."""

from typing import Any, NamedTuple

from fl_sketch.privacy import accounting

RANDOMNESS = {"system": "system", "seed": "simulated"}  # what tables call it
UNPROTECTED = (
    "the test data",
    "the number of clients, and the model, its size and all other keys of the config",
    "how keys of the config were chosen, unless it was on other data",
    "the time that rounds take",
    "who comes and which examples are drawn, from somebody who can undo the shuffles "
    "of batches and of cohorts among more than 4096 clients, whose seeds alone are "
    "cryptographic",
    "last bits of float arithmetic beyond what is rounded away "
    "(fl_sketch/privacy/gaussian.py)",
)


def mark(randomness: str) -> str:
    """Returns what stands behind an epsilon: nothing, or that it is simulated.

    Args:
      randomness: a value of `RANDOMNESS`; with "simulated" nobody's secret noise keeps
        the promise.
    """
    return " (simulated)" * (randomness == RANDOMNESS["seed"])


class Guarantee(NamedTuple):
    """What a run may say of its privacy, and how long it may go on.

    Attributes:
      plan: all rounds that the noise was made for.
      noise_multiplier: z; 0: messages are bounded, and nothing is promised.
      delta: the delta of the promise.
      accountant: the name of the accountant that counts.
      rounds: the round with which the run ends, whatever asks for it.
      per_round: the plan's steps in a round.
      unit: the unit that is protected: a client, or an example.
      randomness: "system", or "simulated" where all follows from the seed.
      public: whether nobody has to be protected: the data are public.
    """

    plan: accounting.Plan
    noise_multiplier: float
    delta: float
    accountant: str
    rounds: int
    per_round: int
    unit: str
    randomness: str
    public: bool

    @property
    def private(self) -> bool:
        """Whether there is noise."""
        return bool(self.noise_multiplier)

    def epsilon(self, rounds: int) -> float | None:
        """Returns the epsilon of so many `rounds`; None, without noise: no bound."""
        if not self.private:
            return None
        plan = self.plan._replace(steps=rounds * self.per_round)
        return spent(plan, self.noise_multiplier, self.delta, self.accountant)

    @property
    def facts(self) -> dict[str, Any]:
        """Returns what the summary says of it."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "releases": self.plan.releases * self.per_round,  # a round
            "privacy_unit": self.unit,
            "relation": self.plan.relation,
            "accountant": self.accountant,
            "randomness": self.randomness,
        }


def spent(plan, z: float, delta: float, accountant: str) -> float:
    """Returns the epsilon that a plan gives away, by `accounting.spent`.

    Args:
      plan: the plan.
      z: the noise on a sum, over the bound of what one unit adds to it.
      delta: the delta of the promise.
      accountant: one of `accounting.ACCOUNTANTS`.
    """
    return accounting.spent(plan, z, delta=delta, accountant=accountant)
