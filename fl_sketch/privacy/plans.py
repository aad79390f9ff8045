"""What a run releases, as an accountant counts it: a `Plan`, and its checks; no jax."""

import numbers
from typing import NamedTuple

from fl_sketch.core import validate
from fl_sketch.privacy.lattice import KINDS, Integers

SAMPLINGS = ("poisson", "fixed", "everyone")
RELATIONS = ("add_remove", "replace_one")
ACCOUNTANTS = ("pld", "rdp")
LEAST_DELTA = 1e-15  # below it, the rounding of floats decides


class Plan(NamedTuple):
    """What is released, apart from the noise.

    Attributes:
      steps: the number of samples, one for each round or local step.
      sample: the number of units in a sample; the mean number for "poisson".
      population: the number of all units.
      sampling: one of `SAMPLINGS`.
      releases: the number of noisy sums of each sample.
      relation: one of `RELATIONS`.
      coordinates: the length of all releases of a sample together.
      shares: the number of independent draws that add up to the noise.
      cut: the probability that one Poisson sample is cut.
      noise: one of `accounting.NOISES`, or of `lattice.KINDS`.
      integers: how messages are integers, of which the noise is one of `KINDS`; None:
        they are floats.
    """

    steps: int
    sample: float
    population: int
    sampling: str = "poisson"
    releases: int = 1
    relation: str = "add_remove"
    coordinates: int = 1
    shares: int = 1
    cut: float = 0.0
    noise: str = "gaussian"
    integers: Integers | None = None

    @property
    def rate(self) -> float:
        """The fraction of the units in a sample."""
        if self.sampling == "everyone":
            return 1.0
        return self.sample / self.population

    @property
    def sensitivity(self) -> float:
        """The most that one unit changes a sum, divided by C."""
        return 2.0 if self.relation == "replace_one" else 1.0


def accountant_for(plan: Plan) -> str:
    """Returns the name of the tightest accountant for `plan`."""
    return "rdp" if plan.sampling == "fixed" or plan.noise in KINDS else "pld"


def require_delta(plan: Plan, delta: float) -> None:
    """Raises a ValueError unless `delta` is below one over the population.

    A larger delta would allow a release of one whole unit.
    """
    if not 0 < delta * plan.population < 1:
        msg = (
            f"Expected 0 < delta < 1 / {plan.population} (one over the population), "
            f"got delta={delta}."
        )
        raise ValueError(msg)


def require(plan: Plan, accountant: str) -> None:
    """Raises a ValueError in one line unless `accountant` can count `plan`."""
    validate.one_of(SAMPLINGS, sampling=plan.sampling)
    validate.one_of(RELATIONS, relation=plan.relation)
    validate.one_of(ACCOUNTANTS, accountant=accountant)
    for name, low in (("steps", 0), ("population", 1), ("releases", 1)):
        _require_integer(low, **{name: getattr(plan, name)})
    if not 0 <= plan.sample <= plan.population:
        msg = (
            f"Expected 0 <= sample <= {plan.population} (the population), "
            f"got sample={plan.sample}."
        )
        raise ValueError(msg)
    fixed = plan.sampling == "fixed"
    if fixed and plan.relation != "replace_one":
        msg = (
            "Expected relation=replace_one with samples of a fixed size (cohorts, or "
            f"batches of unit=example), got relation={plan.relation!r}: set "
            "relation=replace_one, or draw poisson cohorts for unit=client."
        )
        raise ValueError(msg)
    if fixed:
        _require_integer(0, sample=plan.sample)
    if plan.noise in KINDS:
        _require_integers(plan, accountant)
        return
    poisson_replaced = plan.sampling == "poisson" and plan.relation == "replace_one"
    if (accountant == "pld" and fixed) or (accountant == "rdp" and poisson_replaced):
        msg = (
            f"Expected accountant={accountant_for(plan)} with "
            f"sampling={plan.sampling} and relation={plan.relation}, "
            f"got accountant={accountant!r}."
        )
        raise ValueError(msg)


def knows(accountant: str, plan: Plan) -> bool:
    """Returns whether `accountant` can count `plan`."""
    try:
        require(plan, accountant)
    except ValueError:
        return False
    return True


def _require_integers(plan: Plan, accountant: str) -> None:
    """Raises a ValueError for integer noise that no accountant can count."""
    noise = f"noise={plan.noise}"
    if plan.integers is None or len(plan.integers.lengths) != plan.releases:
        msg = f"Expected integers with a length for each release with {noise}, got "
        raise ValueError(msg + f"integers={plan.integers}.")
    if accountant != "rdp":
        msg = f"Expected accountant=rdp with {noise}, got accountant={accountant!r}."
        raise ValueError(msg)
    if plan.integers.smallest and (
        plan.relation != "replace_one" or plan.sampling == "poisson"
    ):  # the noise is made by those who take part, whose number all see
        msg = (
            f"Expected relation=replace_one, and sampling=fixed or everyone, with "
            f"{noise} of clients' own shares, got relation={plan.relation!r} and "
            f"sampling={plan.sampling!r}."
        )
        raise ValueError(msg)


def _require_integer(low: int, **named: float) -> None:
    for name, value in named.items():
        if not isinstance(value, numbers.Integral) or value < low:
            msg = f"Expected {name} to be an integer >= {low}, got {name}={value}."
            raise ValueError(msg)


def between(low: float, high: float, **named: float) -> None:
    """Raises a ValueError unless every named number is above `low` and below `high`."""
    for name, value in named.items():
        if not low < value < high:
            msg = f"Expected {low} < {name} < {high}, got {name}={value}."
            raise ValueError(msg)
