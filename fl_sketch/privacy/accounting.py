"""What a run gives away: (epsilon, delta) from what it releases; no jax in here.

A `Plan` says how often a sample is taken, of how many, in which way, and how many
noisy sums are released of each sample. The noise multiplier z is everywhere the
standard deviation of the noise on the **sum**, over the bound C of one message.

>>> plan = Plan(steps=200, sample=50, population=1000)
>>> round(epsilon(plan, 2.0, delta=1e-5), 2)
1.56
>>> round(calibrate(plan, epsilon=2.0, delta=1e-5), 2)
1.67
>>> epsilon(plan._replace(sampling="fixed"), 2.0, delta=1e-5)
Traceback (most recent call last):
ValueError: Expected relation=replace_one with sampling=fixed, where the number \
of participants is known, got relation='add_remove'.

A unit is whatever `population` counts: clients, or one client's examples. Who is
protected is said by `relation`. `add_remove`: outputs are alike whether a unit is
there or not, and a sum changes by at most C. `replace_one`: whatever a unit's data
are, and a sum changes by at most **2C**. (In dp_accounting the PLD accountant doubles
the sensitivity for this relation and the RDP accountant does not; both get what
they need here.)

Several releases of one sample are one Gaussian of z / sqrt(releases), and not as
many samples: nobody is drawn anew in between.

Noise as it is drawn ends somewhere (`tails`), and a Poisson cohort is cut at some
size. `spent` pays for both from delta, up to a thousandth of it; `epsilon` is that of
exact Gaussians.

What a sampler must be for its row to hold: "poisson" takes every unit with
probability sample / population, independently; "fixed" a uniform set of that size,
without replacement; "everyone" all. The sample is secret. Units that drop out for
reasons that do not depend on their data only help, and get no credit.
"""

import contextlib
import functools
import math
import numbers
from collections.abc import Iterator
from typing import NamedTuple

from absl import logging

from fl_sketch.core import validate
from fl_sketch.privacy import tails

SAMPLINGS = ("poisson", "fixed", "everyone")
RELATIONS = ("add_remove", "replace_one")
ACCOUNTANTS = ("pld", "rdp")


class Plan(NamedTuple):
    """All that an accountant must know beside the noise.

    Attributes:
      steps: the number of times that a sample is taken: of rounds, or of local steps.
      sample: the number of units in a sample; for "poisson", on average.
      population: the number of units that there are.
      sampling: the way in which samples are taken, one of `SAMPLINGS`.
      releases: the number of noisy sums of each sample.
      relation: the change that the noise hides, one of `RELATIONS`.
      coordinates: the number of numbers in all releases of a sample together.
      shares: the number of draws whose sum is the noise.
      cut: the chance that a Poisson sample is cut, each time.
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

    @property
    def rate(self) -> float:
        """The share of the units that a sample holds."""
        if self.sampling == "everyone":
            return 1.0
        return self.sample / self.population

    @property
    def sensitivity(self) -> float:
        """By how much one unit changes a sum, over C."""
        return 2.0 if self.relation == "replace_one" else 1.0


def accountant_for(plan: Plan) -> str:
    """Returns the name of the tightest accountant that knows such a `plan`."""
    return "rdp" if plan.sampling == "fixed" else "pld"


def require_delta(plan: Plan, delta: float) -> None:
    """Raises a ValueError unless `delta` is below one over the population of `plan`.

    With a larger one, giving away a whole unit now and then would be a promise.
    """
    if not 0 < delta * plan.population < 1:
        msg = (
            f"Expected 0 < delta < 1 / {plan.population}, one over how many there are, "
            f"got delta={delta}."
        )
        raise ValueError(msg)


def require(plan: Plan, accountant: str) -> None:
    """Raises a ValueError in one line unless `accountant` has a theory of `plan`."""
    validate.one_of(SAMPLINGS, sampling=plan.sampling)
    validate.one_of(RELATIONS, relation=plan.relation)
    validate.one_of(ACCOUNTANTS, accountant=accountant)
    for name, low in (("steps", 0), ("population", 1), ("releases", 1)):
        _whole(low, **{name: getattr(plan, name)})
    if not 0 <= plan.sample <= plan.population:
        msg = (
            f"Expected 0 <= sample <= {plan.population} (the population), "
            f"got sample={plan.sample}."
        )
        raise ValueError(msg)
    if plan.sampling == "fixed" and plan.relation != "replace_one":
        msg = (
            "Expected relation=replace_one with sampling=fixed, where the number of "
            f"participants is known, got relation={plan.relation!r}."
        )
        raise ValueError(msg)
    fixed = plan.sampling == "fixed"
    if fixed:
        _whole(0, sample=plan.sample)
    thinned = plan.sampling == "poisson" and plan.relation == "replace_one"
    if accountant == ("pld" if fixed else "rdp") and (fixed or thinned):
        other = accountant_for(plan)
        msg = (
            f"Expected accountant={other} with sampling={plan.sampling} and "
            f"relation={plan.relation}, got accountant={accountant!r}."
        )
        raise ValueError(msg)


def epsilon(
    plan: Plan, noise_multiplier: float, *, delta: float, accountant: str | None = None
) -> float:
    """Returns the epsilon of a plan at this delta; infinite without noise.

    Args:
      plan: the plan of what is released.
      noise_multiplier: the noise z on a sum over the bound of one message.
      delta: a number in (0, 1).
      accountant: the name of the accountant, "pld" or "rdp"; None: the tightest that
        fits.
    """
    between(0, 1, delta=delta)
    if not (known := certain(plan, noise_multiplier, accountant)):
        return _composed(plan, noise_multiplier, accountant).get_epsilon(delta)
    return 0.0 if known == "nothing" else math.inf


def beyond(plan: Plan, noise_multiplier: float, epsilon: float) -> float:
    """Returns what noise that ends, and samples that are cut, add to delta.

    Where one draw makes the noise, what both neighbours can give has the probabilities
    of exact noise over a constant. What only one can give is as likely as
    `tails.missing` says. The union bound adds up all samples, as the support of a
    release is known before it. A sum of shares has no such simple support: there exact
    noise is taken for what is drawn, at e^epsilon times the chance of a share beyond
    its end. A sample is cut with the same others on both sides.

    Args:
      plan: the plan of what is released.
      noise_multiplier: the noise z on a sum over the bound of one message.
      epsilon: the price of the plan at about this delta; read where there are several
        shares.
    """
    if plan.shares > 1:
        shares = plan.coordinates * plan.shares * 2 * tails.upper(tails.REACH)
        missing = (1 + math.exp(min(epsilon, 700.0))) * shares
    else:
        shift, each = plan.sensitivity / noise_multiplier, plan.releases
        missing = (each - 1) * tails.missing(shift, 1)
        missing += tails.missing(shift, plan.coordinates)
    return min(1.0, plan.steps * (missing + plan.cut))


@functools.lru_cache(maxsize=1024)  # every row of every point of a sweep asks
def spent(
    plan: Plan, noise_multiplier: float, *, delta: float, accountant: str | None = None
) -> float:
    """Returns the epsilon of a plan at this delta with noise as it is drawn.

    Infinite where the end of the noise would take more than delta / 1000: there is too
    little noise for a promise.

    Args:
      plan: the plan of what is released.
      noise_multiplier: the noise z on a sum over the bound of one message.
      delta: the delta of the promise, all included.
      accountant: a name as in `epsilon`.
    """
    if certain(plan, noise_multiplier, accountant):
        return epsilon(plan, noise_multiplier, delta=delta, accountant=accountant)
    most = delta / 1000
    bound = epsilon(plan, noise_multiplier, delta=delta - most, accountant=accountant)
    extra = beyond(plan, noise_multiplier, bound)
    if extra > most:
        return math.inf
    return epsilon(plan, noise_multiplier, delta=delta - extra, accountant=accountant)


def delta(
    plan: Plan,
    noise_multiplier: float,
    *,
    epsilon: float,
    accountant: str | None = None,
) -> float:
    """Returns the delta of a plan at this `epsilon`, a number above zero.

    The others, `plan`, `noise_multiplier` and `accountant`, are as in `epsilon`.
    """
    between(0, math.inf, epsilon=epsilon)
    if not (known := certain(plan, noise_multiplier, accountant)):
        return _composed(plan, noise_multiplier, accountant).get_delta(epsilon)
    return 0.0 if known == "nothing" else 1.0


@functools.lru_cache(maxsize=128)  # it takes seconds, and all points of a sweep ask
def calibrate(
    plan: Plan, *, epsilon: float, delta: float, accountant: str | None = None
) -> float:
    """Returns the least noise multiplier with which a plan keeps (epsilon, delta).

    Never less than that: what comes back keeps the promise.

    Args:
      plan: the plan of what will be released.
      epsilon: the promise, above zero and finite.
      delta: a number in (0, 1).
      accountant: the name of the accountant, "pld" or "rdp"; None: the tightest that
        fits.
    """
    between(0, math.inf, epsilon=epsilon)
    between(0, 1, delta=delta)
    if certain(plan, 1.0, accountant) == "nothing":
        return 0.0
    import dp_accounting  # takes half a second to import

    name = accountant or accountant_for(plan)
    low = 1.0
    while _exact(plan, low, delta, name) > epsilon:
        low *= 2
    while _exact(plan, low, delta, name) <= epsilon:
        low /= 2
    with without_warnings():
        z = dp_accounting.calibrate_dp_mechanism(
            lambda: accountant_of(plan, low, name),
            lambda z: event(plan, z, name),
            epsilon,
            delta,
            dp_accounting.ExplicitBracketInterval(low, 4 * low),
        )
    while _exact(plan, z, delta, name) > epsilon:  # by the wider cells of little noise
        z *= 1.001
    if math.isinf(spent(plan, z, delta=delta, accountant=name)):
        msg = (
            "Expected noise whose end, and samples whose cut, add less than delta / "
            f"1000 = {delta / 1000:.3g} to delta, got noise_multiplier={z:.3g} for "
            f"epsilon={epsilon}."
        )
        raise ValueError(msg)
    while spent(plan, z, delta=delta, accountant=name) > epsilon:  # by its end
        z *= 1 + 1e-6
    return z


def steps_within(
    plan: Plan,
    noise_multiplier: float,
    *,
    epsilon: float,
    delta: float,
    accountant: str | None = None,
) -> int:
    """Returns how many of the plan's steps keep (epsilon, delta): 0 to `plan.steps`.

    Noise is counted as it is drawn: `plan`, `noise_multiplier`, `delta` and
    `accountant` are those of `spent`, and `epsilon` is the promise.
    """

    def kept(steps: int) -> bool:
        some = plan._replace(steps=steps)
        found = spent(some, noise_multiplier, delta=delta, accountant=accountant)
        return found <= epsilon

    low, high = 0, plan.steps
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if kept(middle) else (low, middle - 1)
    return low


def _exact(plan, noise_multiplier, at_delta, accountant) -> float:
    return epsilon(plan, noise_multiplier, delta=at_delta, accountant=accountant)


def certain(plan: Plan, noise_multiplier: float, accountant: str | None) -> str:
    """Returns what is given away where no accountant is needed to say it.

    It is "nothing" without steps or a sample, or with an infinite `noise_multiplier`;
    "everything" with one of 0; and else "". Raises as `require` does for this `plan`
    and `accountant`, of which None is the tightest.
    """
    require(plan, accountant or accountant_for(plan))
    if not noise_multiplier >= 0:
        msg = (
            f"Expected noise_multiplier >= 0, got noise_multiplier={noise_multiplier}."
        )
        raise ValueError(msg)
    if not plan.steps or plan.rate == 0 or noise_multiplier == math.inf:
        return "nothing"
    return "" if noise_multiplier > 0 else "everything"


@functools.lru_cache(maxsize=8)  # `spent` asks twice, of two deltas
def _composed(plan: Plan, noise_multiplier: float, accountant: str | None):
    name = accountant or accountant_for(plan)
    released = event(plan, noise_multiplier, name)
    with without_warnings():
        return accountant_of(plan, noise_multiplier, name).compose(released)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Silences the RDP accountant on orders that it leaves out, which is safe."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def accountant_of(plan: Plan, noise_multiplier: float, name: str):
    """Returns an accountant, by its `name`, that has counted nothing yet.

    Its relation is the plan's. The cells of a PLD are fit for a `plan` with such a
    `noise_multiplier`, which must be above zero.
    """
    import dp_accounting
    from dp_accounting import pld, rdp

    relation = {
        "add_remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
    }[plan.relation]
    if name == "rdp":
        return rdp.RdpAccountant(neighboring_relation=relation)
    # Losses of one release are about 1 / (2 z^2): cells that grow with them keep
    # little noise from taking minutes. Cells are rounded up, so this is safe.
    z = noise_multiplier / plan.sensitivity / math.sqrt(plan.releases)
    cell = 1e-3 * max(1.0, 0.05 / z**2)
    return pld.PLDAccountant(relation, value_discretization_interval=cell)


def event(plan: Plan, noise_multiplier: float, name: str):
    """Returns what `plan` releases with `noise_multiplier`, as dp_accounting has it.

    The `name` is the accountant's: they differ in who doubles the sensitivity.
    """
    import dp_accounting

    # PLD doubles the sensitivity for replace_one by itself.
    doubled = plan.sensitivity if name == "rdp" else 1.0
    z = noise_multiplier / doubled / math.sqrt(plan.releases)
    found = dp_accounting.GaussianDpEvent(z)
    if plan.sampling == "poisson":
        found = dp_accounting.PoissonSampledDpEvent(plan.rate, found)
    elif plan.sampling == "fixed":
        found = dp_accounting.SampledWithoutReplacementDpEvent(
            plan.population, int(plan.sample), found
        )
    return dp_accounting.SelfComposedDpEvent(found, plan.steps)


def _whole(low: int, **named: float) -> None:
    for name, value in named.items():
        if not isinstance(value, numbers.Integral) or value < low:
            msg = f"Expected {name} to be an integer >= {low}, got {name}={value}."
            raise ValueError(msg)


def between(low: float, high: float, **named: float) -> None:
    """Raises a ValueError unless each of `named` is above `low` and below `high`."""
    for name, value in named.items():
        if not low < value < high:
            msg = f"Expected {low} < {name} < {high}, got {name}={value}."
            raise ValueError(msg)
