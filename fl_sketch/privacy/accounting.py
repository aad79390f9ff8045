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

What a sampler must be for its row to hold: "poisson" takes every unit with
probability sample / population, independently; "fixed" a uniform set of that size,
without replacement; "everyone" all. The sample is secret. Units that drop out for
reasons that do not depend on their data only help, and get no credit.
"""

import contextlib
import math
import numbers
from collections.abc import Iterator
from typing import NamedTuple

from absl import logging

SAMPLINGS = ("poisson", "fixed", "everyone")
RELATIONS = ("add_remove", "replace_one")
ACCOUNTANTS = ("pld", "rdp")


class Plan(NamedTuple):
    """All that an accountant must know beside the noise."""

    steps: int  # how often a sample is taken: rounds, or local steps
    sample: float  # units in it; for poisson, on average
    population: int
    sampling: str = "poisson"
    releases: int = 1  # noisy sums of each sample
    relation: str = "add_remove"

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
    """Returns the tightest accountant that knows such a plan."""
    return "rdp" if plan.sampling == "fixed" else "pld"


def require_delta(plan: Plan, delta: float) -> None:
    """Raises for a delta with which giving away a whole unit would be a promise."""
    if not 0 < delta * plan.population < 1:
        msg = (
            f"Expected 0 < delta < 1 / {plan.population}, one over how many there are, "
            f"got delta={delta}."
        )
        raise ValueError(msg)


def require(plan: Plan, accountant: str) -> None:
    """Raises a ValueError in one line unless the accountant's theory fits the plan."""
    _one_of(SAMPLINGS, sampling=plan.sampling)
    _one_of(RELATIONS, relation=plan.relation)
    _one_of(ACCOUNTANTS, accountant=accountant)
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
      plan: what is released.
      noise_multiplier: z, the noise on a sum over the bound of one message.
      delta: in (0, 1).
      accountant: "pld" or "rdp"; None: the tightest that fits.
    """
    _between(0, 1, delta=delta)
    if not (certain := _certain(plan, noise_multiplier, accountant)):
        return _composed(plan, noise_multiplier, accountant).get_epsilon(delta)
    return 0.0 if certain == "nothing" else math.inf


def delta(
    plan: Plan,
    noise_multiplier: float,
    *,
    epsilon: float,
    accountant: str | None = None,
) -> float:
    """Returns the delta of a plan at this epsilon; see `epsilon`."""
    _between(0, math.inf, epsilon=epsilon)
    if not (certain := _certain(plan, noise_multiplier, accountant)):
        return _composed(plan, noise_multiplier, accountant).get_delta(epsilon)
    return 0.0 if certain == "nothing" else 1.0


def calibrate(
    plan: Plan, *, epsilon: float, delta: float, accountant: str | None = None
) -> float:
    """Returns the least noise multiplier with which a plan keeps (epsilon, delta).

    Never less than that: what comes back keeps the promise.

    Args:
      plan: what will be released.
      epsilon: the promise, above zero and finite.
      delta: in (0, 1).
      accountant: "pld" or "rdp"; None: the tightest that fits.
    """
    _between(0, math.inf, epsilon=epsilon)
    _between(0, 1, delta=delta)
    if _certain(plan, 1.0, accountant) == "nothing":
        return 0.0
    import dp_accounting  # takes half a second to import

    name = accountant or accountant_for(plan)
    low = 1.0
    while _spent(plan, low, delta, name) > epsilon:
        low *= 2
    while _spent(plan, low, delta, name) <= epsilon:
        low /= 2
    with _without_warnings():
        z = dp_accounting.calibrate_dp_mechanism(
            lambda: _accountant(plan, low, name),
            lambda z: _event(plan, z, name),
            epsilon,
            delta,
            dp_accounting.ExplicitBracketInterval(low, 4 * low),
        )
    while _spent(plan, z, delta, name) > epsilon:  # by the wider cells of little noise
        z *= 1.001
    return z


def steps_within(
    plan: Plan,
    noise_multiplier: float,
    *,
    epsilon: float,
    delta: float,
    accountant: str | None = None,
) -> int:
    """Returns how many of the plan's steps keep (epsilon, delta): 0 to `plan.steps`."""

    def kept(steps: int) -> bool:
        spent = _spent(plan._replace(steps=steps), noise_multiplier, delta, accountant)
        return spent <= epsilon

    low, high = 0, plan.steps
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if kept(middle) else (low, middle - 1)
    return low


def _spent(plan, noise_multiplier, at_delta, accountant) -> float:
    return epsilon(plan, noise_multiplier, delta=at_delta, accountant=accountant)


def advanced_composition(plan: Plan, noise_multiplier: float, *, delta: float) -> float:
    """Returns the epsilon of Song et al., Appendix H: for comparison only.

    Every release is (e, d)-private by the classical Gaussian mechanism, z = sqrt(2
    log(1.25/d)) / e (Lemma H.7), and k of them are composed by Lemma H.3 as printed:
    sqrt(2 k log(1/d')) e + 2 k e^2 with d' + k d = delta; here d' = k d. Sampling gets
    no credit, as in their Theorem H.11. Infinite where e > 1, which the lemma excludes.
    """
    _between(0, 1, delta=delta)
    count = plan.steps * plan.releases
    if _certain(plan, noise_multiplier, None):
        return 0.0 if not count or plan.rate == 0 else math.inf
    each = math.sqrt(2 * math.log(1.25 * 2 * count / delta))
    each *= plan.sensitivity / noise_multiplier
    if each > 1:
        return math.inf
    composed = math.sqrt(2 * count * math.log(2 / delta)) * each
    return composed + 2 * count * each**2


def das_noise_multiplier(
    plan: Plan, *, epsilon: float, delta: float, constant: float = 1.0
) -> float:
    """Returns z by Das et al., Theorem 1, whose constant nobody states.

    Noise of sigma^2 = q K C^2 log(1/delta) / (n epsilon)^2 on the mean over r clients
    is z = (r / n) sqrt(q K log(1/delta)) / epsilon on the sum. It comes from the
    moments accountant and holds for some q and small epsilon only: no promise.
    """
    count = plan.steps * plan.releases
    return plan.rate * math.sqrt(constant * count * math.log(1 / delta)) / epsilon


def count_sketch_claim(
    *, rows: int, cols: int, length: int, sigma: float, bound: float, alpha: float
) -> float:
    """Returns the epsilon that FedSKETCH's Theorem 1 claims of a sketch without noise.

    t ln(1 + alpha C^2 m (m - 1) (1 + ln(l - m)) / (sigma^2 (l - 2))). It assumes that
    the l numbers sketched are independent draws of N(0, sigma^2), at most C in size
    (Assumption 1): gradients are not. Nothing in fl_sketch gives credit for it.

    Raises:
      ValueError: where its condition on alpha does not hold.
    """
    if not 2 < cols < length - 1:
        msg = f"Expected 2 < cols < length - 1 = {length - 1}, got cols={cols}."
        raise ValueError(msg)
    inside = alpha * bound**2 * cols * (cols - 1) / (sigma**2 * (length - 2))
    inside *= 1 + math.log(length - cols)
    if inside > 0.5 - 1 / alpha:
        msg = (
            f"Expected the theorem's condition {inside:.4g} <= 1/2 - 1/alpha = "
            f"{0.5 - 1 / alpha:.4g}, got alpha={alpha}."
        )
        raise ValueError(msg)
    return rows * math.log1p(inside)


def _certain(plan: Plan, noise_multiplier: float, accountant: str | None) -> str:
    """Returns "nothing" or "everything" where no accountant is needed, or ""."""
    require(plan, accountant or accountant_for(plan))
    if not noise_multiplier >= 0:
        msg = (
            f"Expected noise_multiplier >= 0, got noise_multiplier={noise_multiplier}."
        )
        raise ValueError(msg)
    if not plan.steps or plan.rate == 0 or noise_multiplier == math.inf:
        return "nothing"
    return "" if noise_multiplier > 0 else "everything"


def _composed(plan: Plan, noise_multiplier: float, accountant: str | None):
    name = accountant or accountant_for(plan)
    event = _event(plan, noise_multiplier, name)
    with _without_warnings():
        return _accountant(plan, noise_multiplier, name).compose(event)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Silences the RDP accountant on orders that it leaves out, which is safe."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _accountant(plan: Plan, noise_multiplier: float, name: str):
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


def _event(plan: Plan, noise_multiplier: float, name: str):
    import dp_accounting

    # PLD doubles the sensitivity for replace_one by itself.
    doubled = plan.sensitivity if name == "rdp" else 1.0
    z = noise_multiplier / doubled / math.sqrt(plan.releases)
    event = dp_accounting.GaussianDpEvent(z)
    if plan.sampling == "poisson":
        event = dp_accounting.PoissonSampledDpEvent(plan.rate, event)
    elif plan.sampling == "fixed":
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            plan.population, int(plan.sample), event
        )
    return dp_accounting.SelfComposedDpEvent(event, plan.steps)


def _one_of(allowed: tuple[str, ...], **named: str) -> None:
    for name, value in named.items():
        if value not in allowed:
            msg = f"Expected {name} to be one of {', '.join(allowed)}, got {value!r}."
            raise ValueError(msg)


def _whole(low: int, **named: int) -> None:
    for name, value in named.items():
        if not isinstance(value, numbers.Integral) or value < low:
            msg = f"Expected {name} to be an integer >= {low}, got {name}={value}."
            raise ValueError(msg)


def _between(low: float, high: float, **named: float) -> None:
    for name, value in named.items():
        if not low < value < high:
            msg = f"Expected {low} < {name} < {high}, got {name}={value}."
            raise ValueError(msg)
