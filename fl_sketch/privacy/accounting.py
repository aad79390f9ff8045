"""Computes (epsilon, delta) of the releases of a run; does not import jax.

A `Plan` says how often a sample of units is taken, how, and how many noisy sums are
released of each. The noise multiplier z is always the standard deviation of the noise
on the **sum**, divided by the bound C on one message.

>>> plan = Plan(steps=200, sample=50, population=1000)
>>> round(epsilon(plan, 2.0, delta=1e-5), 2)
1.56
>>> round(calibrate(plan, epsilon=2.0, delta=1e-5), 2)
1.67

A unit is a client, or an example of one client. Under the relation `add_remove`
neighbours differ in whether a unit takes part, and a sum changes by at most C. Under
`replace_one` they differ in the data of a unit, and a sum changes by at most **2C**.
Samples are secret: "poisson" takes every unit independently, "fixed" a uniform set
without replacement, "everyone" all units. Units that drop out for reasons that do not
depend on their data do not lower epsilon.

Drawn noise has an end, and a Poisson cohort has places for all but one cohort in 10^14.
The probability of outputs that prove that a client took part is charged to delta, up to
delta / 1000 (`charged`).
"""

import contextlib
import functools
import math
import numbers
from collections.abc import Iterator
from typing import NamedTuple

from absl import logging

from fl_sketch.core import validate
from fl_sketch.privacy.lattice import Integers

SAMPLINGS = ("poisson", "fixed", "everyone")
RELATIONS = ("add_remove", "replace_one")
ACCOUNTANTS = ("pld", "rdp")
LEAST_DELTA = 1e-15  # below it, the rounding of floats decides
LEAST_NOISE, MOST_NOISE = 2.0**-10, 2.0**20  # multipliers that are of any use
SMALLEST = 2.0 ** -(47 + 64 + 1)  # the least chance of a number of `gaussian`
REACH = 12.238913701438605  # standard deviations: P(|N(0, 1)| > REACH) = SMALLEST
TABLE = 2.0**-108  # the chance that a draw of `integer_noise` is not exact noise
CUT = 1e-14  # the probability of a Poisson cohort that is larger than its places


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
      cut: the probability that one Poisson sample is cut.
      integers: how messages are integers, whose noise is Skellam's; None: they are
        floats, and the noise is Gaussian.
    """

    steps: int
    sample: float
    population: int
    sampling: str = "poisson"
    releases: int = 1
    relation: str = "add_remove"
    coordinates: int = 1
    cut: float = 0.0
    integers: Integers | None = None

    @property
    def rate(self) -> float:
        """The fraction of the units in a sample."""
        return 1.0 if self.sampling == "everyone" else self.sample / self.population

    @property
    def sensitivity(self) -> float:
        """The most that one unit changes a sum, divided by C."""
        return 2.0 if self.relation == "replace_one" else 1.0

    @property
    def noise(self) -> str:
        """The name of the noise."""
        return "skellam" if self.integers else "gaussian"


def epsilon(
    plan: Plan, noise_multiplier: float, *, delta: float, accountant: str | None = None
) -> float:
    """Returns the epsilon of `plan` at `delta`, never less than the truth.

    It is infinite without noise, or with so little that missing tails cost more than
    delta / 1000. By default the tightest accountant counts.
    """
    between(LEAST_DELTA, 1, delta=delta)
    name = accountant or accountant_for(plan)
    if (known := certain(plan, noise_multiplier, name)) is not None:
        return known
    return composed(((plan, noise_multiplier),), name, delta)


@functools.lru_cache(maxsize=1024)  # every row of every point of a sweep asks
def composed(parts: tuple[tuple[Plan, float], ...], name: str, delta: float) -> float:
    """Returns the epsilon of several plans with noise together, by one accountant.

    The parts are pairs (plan, noise multiplier), of one relation and not `certain`.
    """
    accountant, most = _accountant_of(parts, name), delta / 1000
    bound = accountant.get_epsilon(delta - most)
    extra = sum(charged(plan, z, bound) for plan, z in parts)
    return float(accountant.get_epsilon(delta - extra)) if extra <= most else math.inf


def charged(plan: Plan, noise_multiplier: float, epsilon: float) -> float:
    """Returns what missing tails and cut samples add to delta.

    Outputs that both neighbours can give have the probabilities of exact Gaussians over
    a constant. Outputs that only one can give have the probability `missing`. The union
    bound adds up all samples, since the support of a release is known before it. Exact
    noise replaces integer noise, at e^epsilon times the chance that a draw differs from
    it, for the `epsilon` of the plan at about this delta. The same other units are in a
    cut sample on both sides.
    """
    if plan.integers:
        draws = plan.integers.most if plan.integers.smallest else 1
        drawn = plan.coordinates * draws * TABLE
        outside = (1 + math.exp(min(epsilon, 700.0))) * drawn
    else:
        shift = plan.sensitivity / noise_multiplier
        outside = (plan.releases - 1) * missing(shift, 1)
        outside += missing(shift, plan.coordinates)
    return min(1.0, plan.steps * (outside + plan.cut))


@functools.lru_cache(maxsize=128)  # it takes seconds, and all points of a sweep ask
def calibrate(
    plan: Plan, *, epsilon: float, delta: float, accountant: str | None = None
) -> float:
    """Returns the least noise multiplier with which `plan` is (epsilon, delta)-private.

    It is rounded up. A Poisson plan without a `cut` is calibrated for the one that
    `engine.poisson` makes.
    """
    between(0, math.inf, epsilon=epsilon)
    between(LEAST_DELTA, 1, delta=delta)
    name = accountant or accountant_for(plan)
    if certain(plan, 1.0, name) is not None:
        return 0.0
    drawn = plan
    if plan.sampling == "poisson" and not plan.cut:
        drawn = plan._replace(cut=cut_chance(plan.population, plan.sample))
    z = _least_noise(plan, epsilon, delta, name)
    if math.isinf(composed(((drawn, z),), name, delta)):
        alone = drawn.steps * drawn.cut > delta / 1000
        any_noise = f" and any other: {drawn.steps} cut cohorts alone exceed it" * alone
        msg = (
            "Expected the cut tails of the noise and of the cohort's size to add less "
            f"than delta / 1000 = {delta / 1000:.3g} to delta, got more with "
            f"noise_multiplier={z:.3g} for epsilon={epsilon}{any_noise}."
        )
        raise ValueError(msg)
    while epsilon < composed(((drawn, z),), name, delta) < math.inf:
        z *= 1 + 1e-6
    return z


def _least_noise(plan: Plan, target: float, delta: float, name: str) -> float:
    """Returns the least z that keeps the target with exact noise and samples."""
    import dp_accounting  # takes half a second to import

    def exceeds(z):
        return _accountant_of(((plan, z),), name).get_epsilon(delta) > target

    low = 1.0
    while exceeds(low):
        low *= 2
        if plan.integers and low > MOST_NOISE:
            bits = plan.integers.bits
            msg = f"Expected more bits: no noise keeps epsilon={target}, got {bits=}."
            raise ValueError(msg)
    while not exceeds(low):
        if low < LEAST_NOISE:  # sampling alone keeps the target
            return low
        low /= 2
    with _without_warnings():
        z = dp_accounting.calibrate_dp_mechanism(
            lambda: _new_accountant(plan, low, name),
            lambda z: _event(plan, z, name),
            target,
            delta,
            dp_accounting.ExplicitBracketInterval(low, 4 * low),
        )
    while exceeds(z):  # the cells of the PLD are wider at this z than at `low`
        z *= 1.001
    return z


def certain(plan: Plan, noise_multiplier: float, accountant: str) -> float | None:
    """Returns an epsilon that needs no accountant; None: it needs one.

    It is zero without steps, without a sample, or with infinite noise, and infinite
    without noise.
    """
    require(plan, accountant)
    if not (z := noise_multiplier) >= 0:
        msg = f"Expected noise_multiplier >= 0, got noise_multiplier={z}."
        raise ValueError(msg)
    if not plan.steps or plan.rate == 0 or z == math.inf:
        return 0.0
    return None if z > 0 else math.inf


@functools.lru_cache(maxsize=8)  # it is asked at two deltas
def _accountant_of(parts: tuple[tuple[Plan, float], ...], name: str):
    """Returns the accountant of dp_accounting after all parts, of one relation."""
    least = min(parts, key=lambda part: part[1] / part[0].releases ** 0.5)
    with _without_warnings():
        accountant = _new_accountant(*least, name)
        for plan, z in parts:
            accountant.compose(_event(plan, z, name))
    return accountant


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Silences the RDP accountant about orders that it leaves out, which is safe."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _new_accountant(plan: Plan, noise_multiplier: float, name: str):
    """Returns a new accountant of dp_accounting for the relation of `plan`.

    The cells of a PLD fit a plan with this `noise_multiplier`, above zero.
    """
    import dp_accounting
    from dp_accounting import pld

    from fl_sketch.privacy import renyi  # which imports it too

    relations = dp_accounting.NeighboringRelation
    replaced = plan.relation == "replace_one"
    relation = relations.REPLACE_ONE if replaced else relations.ADD_OR_REMOVE_ONE
    if name == "rdp":
        return renyi.Accountant(renyi.ORDERS if plan.integers else None, relation)
    # Losses of one release are about 1 / (2 z^2). Cells that grow with them keep
    # little noise from taking minutes. They are rounded up, so this is safe.
    z = noise_multiplier / plan.sensitivity / math.sqrt(plan.releases)
    cell = 1e-3 * max(1.0, 0.05 / z**2)
    return pld.PLDAccountant(relation, value_discretization_interval=cell)


def _event(plan: Plan, noise_multiplier: float, name: str):
    """Returns the event of dp_accounting that `plan` is to the accountant `name`."""
    import dp_accounting

    from fl_sketch.privacy import renyi

    if plan.integers:
        release = renyi.event(plan, noise_multiplier)
        return dp_accounting.SelfComposedDpEvent(release, plan.steps)
    # The PLD accountant doubles the sensitivity for replace_one by itself.
    z = noise_multiplier / (plan.sensitivity if name == "rdp" else 1.0)
    release = dp_accounting.GaussianDpEvent(z / math.sqrt(plan.releases))
    if plan.sampling == "poisson":
        release = dp_accounting.PoissonSampledDpEvent(plan.rate, release)
    elif plan.sampling == "fixed":
        release = dp_accounting.SampledWithoutReplacementDpEvent(
            plan.population, int(plan.sample), release
        )
    return dp_accounting.SelfComposedDpEvent(release, plan.steps)


def accountant_for(plan: Plan) -> str:
    """Returns the name of the tightest accountant for `plan`."""
    return "rdp" if plan.sampling == "fixed" or plan.integers else "pld"


def require(plan: Plan, accountant: str) -> None:
    """Raises a ValueError in one line unless `accountant` can count `plan`."""
    validate.one_of(SAMPLINGS, sampling=plan.sampling)
    validate.one_of(RELATIONS, relation=plan.relation)
    validate.one_of(ACCOUNTANTS, accountant=accountant)
    fixed, given = plan.sampling == "fixed", f"relation={plan.relation!r}"
    whole = {"steps": 0, "population": 1, "releases": 1}
    for name, low in (whole | ({"sample": 0} if fixed else {})).items():
        value = getattr(plan, name)
        if not isinstance(value, numbers.Integral) or value < low:
            msg = f"Expected {name} to be an integer >= {low}, got {name}={value}."
            raise ValueError(msg)
    if not 0 <= plan.sample <= plan.population:
        msg = (
            f"Expected 0 <= sample <= {plan.population} (the population), "
            f"got sample={plan.sample}."
        )
        raise ValueError(msg)
    if fixed and plan.relation != "replace_one":
        msg = (
            "Expected relation=replace_one with samples of a fixed size (cohorts, or "
            f"batches of unit=example), got {given}: set relation=replace_one, or draw "
            "poisson cohorts for unit=client."
        )
        raise ValueError(msg)
    sums = plan.integers
    if sums and len(sums.lengths) != plan.releases:
        msg = f"Expected a length of integers for each release, got {sums.lengths}."
        raise ValueError(msg)
    poisson, replaced = plan.sampling == "poisson", plan.relation == "replace_one"
    if sums and sums.smallest and (poisson or not replaced):  # all see their number
        msg = (
            "Expected relation=replace_one, and sampling=fixed or everyone, with noise "
            f"of clients' own shares, got {given} and sampling={plan.sampling!r}."
        )
        raise ValueError(msg)
    if (accountant == "pld" and (fixed or sums)) or (
        accountant == "rdp" and poisson and replaced and not sums
    ):
        msg = (
            f"Expected accountant={accountant_for(plan)} with noise={plan.noise}, "
            f"sampling={plan.sampling} and relation={plan.relation}, got "
            f"accountant={accountant!r}."
        )
        raise ValueError(msg)


def require_delta(plan: Plan, delta: float) -> None:
    """Raises unless `delta` is too small for the release of one whole unit."""
    if not 0 < delta * plan.population < 1:
        msg = (
            f"Expected 0 < delta < 1 / {plan.population} (one over the population), "
            f"got delta={delta}."
        )
        raise ValueError(msg)


def between(low: float, high: float, **named: float) -> None:
    """Raises a ValueError unless every named number is above `low` and below `high`."""
    for name, value in named.items():
        if not low < value < high:
            msg = f"Expected {low} < {name} < {high}, got {name}={value}."
            raise ValueError(msg)


def missing(shift: float, coordinates: int, reach: float = REACH) -> float:
    """Returns the probability that noise without a client cannot make a release.

    A client moves the sum by a vector v of length `shift`, in standard deviations. The
    probability is at most the sum over coordinates of `P(|N + v_i| > reach)`, which is
    convex in the squares of the v_i if the length of v is below reach - 1. It is then
    largest with v in one coordinate.
    """
    if shift > reach - 1:
        return 1.0
    worst = upper(reach - shift) + upper(reach + shift)
    return min(1.0, worst + (coordinates - 1) * 2 * upper(reach))


def upper(x: float) -> float:
    """Returns P(N(0, 1) > `x`)."""
    return math.erfc(x / math.sqrt(2)) / 2


def places_for(population: int, expected: float) -> int:
    """Returns the places of a Poisson cohort of `expected` clients on average."""
    from scipy import stats  # takes half a second to import

    rate = expected / population
    return min(population, int(stats.binom.isf(CUT, population, rate)) + 1)


def cut_chance(population: int, expected: float) -> float:
    """Returns the probability that others leave a client no place, or the last one.

    That place a client has a little more often than under Poisson sampling.
    """
    from scipy import stats

    places = places_for(population, expected)
    if places == population:
        return 0.0
    return float(stats.binom.sf(places - 2, population, expected / population))
