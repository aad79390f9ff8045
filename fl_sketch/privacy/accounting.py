"""Computes (epsilon, delta) of the releases of a run; does not import jax.

A `Plan` says how often a sample of units is taken, how, and how many noisy sums are
released of each sample. The noise multiplier z is always the standard deviation of the
noise on the **sum**, divided by the bound C on one message.

>>> plan = Plan(steps=200, sample=50, population=1000)
>>> round(epsilon(plan, 2.0, delta=1e-5), 2)
1.56
>>> round(calibrate(plan, epsilon=2.0, delta=1e-5), 2)
1.67
>>> fixed = plan._replace(sampling="fixed", relation="replace_one")
>>> round(epsilon(fixed, 2.0, delta=1e-5), 2)
9.28

A unit is a client, or an example of one client. Under the relation `add_remove`
neighbours differ in whether a unit takes part, and a sum changes by at most C. Under
`replace_one` they differ in the data of a unit, and a sum changes by at most **2C**.

Samples are secret. "poisson" takes every unit independently with probability
sample / population, "fixed" a uniform set of that size without replacement, and
"everyone" all units. Several releases of one sample are one Gaussian of
z / sqrt(releases), not several samples. Units that drop out for reasons that do not
depend on their data only help, and earn no credit.

`epsilon` is that of exact Gaussians and uncut samples. `spent` also charges delta for
the missing tail of the noise and for Poisson cohorts that are cut (`tails`), up to
delta / 1000.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from fl_sketch.core import validate
from fl_sketch.privacy import lattice, tails
from fl_sketch.privacy.plans import (
    LEAST_DELTA,
    Plan,
    accountant_for,
    between,
    require,
)

# `(dp_accounting, z, releases) -> event` of all noisy sums of a sample, by the name of
# the noise that a Mechanism gives. Gaussians of one sample are one Gaussian. Noises of
# `lattice.KINDS` are those of `renyi`.
NOISES: dict[str, Callable[[Any, float, int], Any]] = {
    "gaussian": lambda dp, z, releases: dp.GaussianDpEvent(z / math.sqrt(releases)),
}
MOST_NOISE = 2.0**20  # a multiplier beyond which no integers keep a promise
LEAST_NOISE = 2.0**-10  # a multiplier below which noise is as good as none


def epsilon(
    plan: Plan, noise_multiplier: float, *, delta: float, accountant: str | None = None
) -> float:
    """Returns the epsilon of `plan` at `delta`; infinite without noise.

    It is for exact noise and samples; what runs claim is `spent`, which also counts cut
    tails and cut samples. By default the tightest of `ACCOUNTANTS` counts.
    """
    between(LEAST_DELTA, 1, delta=delta)
    if not (known := certain(plan, noise_multiplier, accountant)):
        return float(_composed(plan, noise_multiplier, accountant).get_epsilon(delta))
    return 0.0 if known == "nothing" else math.inf


def beyond(plan: Plan, noise_multiplier: float, epsilon: float) -> float:
    """Returns what missing tails and cut samples add to delta.

    With one draw of noise, outputs that both neighbours can give have the probabilities
    of exact noise over a constant. Outputs that only one can give have the probability
    `tails.missing`. The union bound adds up all samples, since the support of a release
    is known before it. A sum of several shares has no such simple support. There exact
    noise replaces the drawn noise, at e^epsilon times the probability of a share beyond
    its end, for the `epsilon` of the plan at about this delta. So it does in place of
    integer noise, whose tables have rounded probabilities and an end. The same other
    units are in a cut sample on both sides.
    """
    if plan.shares > 1 or plan.integers:
        one = tails.TABLE if plan.integers else 2 * tails.upper(tails.REACH)
        drawn = plan.coordinates * plan.shares * one
        missing = (1 + math.exp(min(epsilon, 700.0))) * drawn
    else:
        shift = plan.sensitivity / noise_multiplier
        missing = (plan.releases - 1) * tails.missing(shift, 1)
        missing += tails.missing(shift, plan.coordinates)
    return min(1.0, plan.steps * (missing + plan.cut))


@functools.lru_cache(maxsize=1024)  # every row of every point of a sweep asks
def spent(
    plan: Plan, noise_multiplier: float, *, delta: float, accountant: str | None = None
) -> float:
    """Returns the epsilon of `plan` at `delta` with noise and samples as drawn.

    It is infinite if `beyond` exceeds delta / 1000: the noise is too small for any
    guarantee.
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
    """Returns the delta of `plan` at `epsilon`, a number above zero."""
    between(0, math.inf, epsilon=epsilon)
    if not (known := certain(plan, noise_multiplier, accountant)):
        return float(_composed(plan, noise_multiplier, accountant).get_delta(epsilon))
    return 0.0 if known == "nothing" else 1.0


@functools.lru_cache(maxsize=128)  # it takes seconds, and all points of a sweep ask
def calibrate(
    plan: Plan, *, epsilon: float, delta: float, accountant: str | None = None
) -> float:
    """Returns the least noise multiplier with which `plan` is (epsilon, delta)-private.

    It is rounded up, so that `spent` never exceeds `epsilon`. A Poisson plan without a
    `cut` is calibrated for the one that `engine.poisson` makes.

    Raises:
      ValueError: if the missing tail of the noise, and cut samples, would cost more
        than delta / 1000.
    """
    between(0, math.inf, epsilon=epsilon)
    between(LEAST_DELTA, 1, delta=delta)
    if certain(plan, 1.0, accountant) == "nothing":
        return 0.0
    name = accountant or accountant_for(plan)
    z, drawn = _least_noise(plan, epsilon, delta, name), _cut_as_drawn(plan)
    if math.isinf(spent(drawn, z, delta=delta, accountant=name)):
        alone = drawn.steps * drawn.cut > delta / 1000
        msg = (
            "Expected the cut tails of the noise and of the cohort's size to add less "
            f"than delta / 1000 = {delta / 1000:.3g} to delta, got more with "
            f"noise_multiplier={z:.3g} for epsilon={epsilon}"
            f"{f' and any other: {drawn.steps} cut cohorts alone exceed it' * alone}."
        )
        raise ValueError(msg)
    for one in (plan, drawn):
        while epsilon < spent(one, z, delta=delta, accountant=name) < math.inf:
            z *= 1 + 1e-6
    return z


def _least_noise(plan: Plan, target: float, delta: float, name: str) -> float:
    """Returns the least z at which `epsilon` keeps the target."""
    import dp_accounting  # takes half a second to import

    def exceeds(z):
        return epsilon(plan, z, delta=delta, accountant=name) > target

    low = 1.0
    while exceeds(low):
        low *= 2
        if plan.integers and low > MOST_NOISE:
            msg = (
                f"Expected more bits, or a smaller granularity, for epsilon={target}: "
                "rounding of messages alone reveals more, with any noise, got "
                f"bits={plan.integers.bits}."
            )
            raise ValueError(msg)
    while not exceeds(low):
        if low < LEAST_NOISE:  # sampling alone keeps the target
            return low
        low /= 2
    with without_warnings():
        z = dp_accounting.calibrate_dp_mechanism(
            lambda: accountant_of(plan, low, name),
            lambda z: event(plan, z, name),
            target,
            delta,
            dp_accounting.ExplicitBracketInterval(low, 4 * low),
        )
    while exceeds(z):  # the cells of the PLD are wider at this z than at `low`
        z *= 1.001
    return z


def _cut_as_drawn(plan: Plan) -> Plan:
    if plan.sampling != "poisson" or plan.cut:
        return plan
    return plan._replace(cut=tails.cut_chance(plan.population, plan.sample))


def steps_within(
    plan: Plan,
    noise_multiplier: float,
    *,
    epsilon: float,
    delta: float,
    accountant: str | None = None,
) -> int:
    """Returns how many steps of the plan `spent` allows: from 0 to `plan.steps`."""
    promise = {"delta": delta, "accountant": accountant}
    low, high = 0, plan.steps
    while low < high:
        middle = (low + high + 1) // 2
        shorter = plan._replace(steps=middle)
        enough = spent(shorter, noise_multiplier, **promise) <= epsilon
        low, high = (middle, high) if enough else (low, middle - 1)
    return low


def certain(plan: Plan, noise_multiplier: float, accountant: str | None) -> str:
    """Returns the budget in cases that need no accountant.

    It is "nothing" without steps, without a sample, or with infinite noise,
    "everything" without noise, and otherwise "".

    Raises:
      ValueError: as `require`, and for a `noise_multiplier` below zero.
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


@functools.lru_cache(maxsize=8)  # `spent` asks twice, at two deltas
def _composed(plan: Plan, noise_multiplier: float, accountant: str | None):
    name = accountant or accountant_for(plan)
    released = event(plan, noise_multiplier, name)
    with without_warnings():
        return accountant_of(plan, noise_multiplier, name).compose(released)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Silences the RDP accountant about orders that it leaves out, which is safe."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def accountant_of(plan: Plan, noise_multiplier: float, name: str):
    """Returns a new accountant of dp_accounting for the relation of `plan`.

    The cells of a PLD fit a plan with this `noise_multiplier`, above zero.
    """
    import dp_accounting
    from dp_accounting import pld

    from fl_sketch.privacy import renyi  # which imports it too

    relation = {
        "add_remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
    }[plan.relation]
    if name == "rdp":
        orders = renyi.ORDERS if plan.integers else None
        return renyi.Accountant(orders, relation)
    # Losses of one release are about 1 / (2 z^2). Cells that grow with them keep
    # little noise from taking minutes. They are rounded up, so this is safe.
    z = noise_multiplier / plan.sensitivity / math.sqrt(plan.releases)
    cell = 1e-3 * max(1.0, 0.05 / z**2)
    return pld.PLDAccountant(relation, value_discretization_interval=cell)


def event(plan: Plan, noise_multiplier: float, name: str):
    """Returns the event of dp_accounting that `plan` is to the accountant `name`."""
    import dp_accounting

    from fl_sketch.privacy import renyi

    if plan.noise in lattice.KINDS:
        release = renyi.event(plan, noise_multiplier)
        return dp_accounting.SelfComposedDpEvent(release, plan.steps)
    # The PLD accountant doubles the sensitivity for replace_one by itself.
    doubled = plan.sensitivity if name == "rdp" else 1.0
    validate.one_of((*NOISES, *lattice.KINDS), noise=plan.noise)
    z = noise_multiplier / doubled
    release = NOISES[plan.noise](dp_accounting, z, plan.releases)
    if plan.sampling == "poisson":
        release = dp_accounting.PoissonSampledDpEvent(plan.rate, release)
    elif plan.sampling == "fixed":
        release = dp_accounting.SampledWithoutReplacementDpEvent(
            plan.population, int(plan.sample), release
        )
    return dp_accounting.SelfComposedDpEvent(release, plan.steps)
