"""Renyi divergences of Skellam noise, and of samples of any mechanism; imports no jax.

They are upper bounds at whole orders. Between two of these a straight line bounds
(order - 1) times the divergence, which is a convex function of the order.

A cohort of fixed size is a sample in which one unit is exchanged for another one, and
so is a Poisson sample whose unit is replaced. Both neighbours are one step from what
they share, the sample without the unit, or with another one in its place. Two sampled
divergences and the triangle inequality then bound theirs.

References: Agarwal, Kairouz and Liu (2021), Theorem 3.5, for Skellam noise; Zhu and
Wang (2019), Theorem 5, for Poisson samples, and Mironov, Talwar and Zhang (2019),
Theorem 5, for those of symmetric noise; Wang, Balle and Kasiviswanathan (2019), Theorem
9, for samples of a fixed size; Mironov (2017), Proposition 11, for the triangle.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy import special

from fl_sketch.privacy import lattice
from fl_sketch.privacy.accounting import Plan
from fl_sketch.privacy.lattice import Integers

# (orders, whole numbers) -> divergences
Curve = Callable[[np.ndarray], np.ndarray]

ORDERS = (
    *(1 + n / 10 for n in range(1, 100)), *range(11, 129), 160, 192, 256, 384, 512, 1024
)  # fmt: skip
# The orders at which a step is known, of which there are two in a triangle.
GRID = np.array([*range(2, 129), 144, 160, 192, 224, *range(256, 2049, 128)])
HOLDER = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)  # exponents of the triangle


@dataclasses.dataclass(frozen=True)
class CurveDpEvent(dp_event.DpEvent):
    """A mechanism whose divergences are known."""

    curve: Curve


class Accountant(RdpAccountant):
    """The accountant of dp_accounting, which here also knows a `CurveDpEvent`."""

    def _maybe_compose(
        self, event: dp_event.DpEvent, count: int, do_compose: bool
    ) -> Any:
        if not isinstance(event, CurveDpEvent):
            return super()._maybe_compose(event, count, do_compose)
        if do_compose:
            orders = np.asarray(self._orders, np.float64)
            self._rdp += count * _between(event.curve, orders)
        return None


def event(plan: Plan, noise_multiplier: float) -> CurveDpEvent:
    """Returns all releases of one sample of `plan`, whose messages are integers."""

    def moved(by):
        """Returns the curve of all releases of sums that move by so many bounds."""
        assert plan.integers is not None
        return functools.partial(_releases, plan.integers, noise_multiplier, by)

    own, symmetric = moved(plan.sensitivity), plan.releases == 1
    if plan.sampling == "everyone":
        return CurveDpEvent(own)
    if plan.sampling == "fixed":
        sampled = poisson_sample(own, plan.rate, symmetric=symmetric)
        return CurveDpEvent(_least(fixed_sample(own, plan.rate), exchanged(sampled)))
    added = poisson_sample(moved(1.0), plan.rate, symmetric=symmetric)
    if plan.relation == "add_remove":
        return CurveDpEvent(added)
    return CurveDpEvent(_least(own, exchanged(added)))


def _between(curve: Curve, orders: np.ndarray) -> np.ndarray:
    """Returns the divergences at real orders, from those at whole orders."""

    def moments(orders):  # logarithms; zero at the order 1
        return (orders - 1) * curve(np.maximum(2, orders))

    low = np.floor(orders)
    part, first = orders - low, moments(low)
    with np.errstate(invalid="ignore"):  # where it is infinite
        line = first + part * (moments(low + 1) - first)
    return np.where(part > 0, line, first) / (orders - 1)


def _releases(
    integers: Integers, z: float, by: float, orders: np.ndarray
) -> np.ndarray:
    """Returns the divergences of all releases of a sample together."""
    total = np.zeros(len(orders))
    for length in integers.lengths:
        scale = lattice.scale(integers, z, length)
        if not scale:
            return np.full(len(orders), np.inf)
        square = lattice.square(scale, length)
        variance = integers.draws * lattice.draw_variance(integers, z, scale)
        l1, l2 = by * min(square, (length * square) ** 0.5), by * square**0.5
        total += skellam(orders, variance=variance, l1=l1, l2=l2)
    return total


def _least(one: Curve, other: Curve) -> Curve:
    return lambda orders: np.minimum(one(orders), other(orders))


def skellam(orders: np.ndarray, *, variance: float, l1: float, l2: float) -> np.ndarray:
    """Returns the divergences of a vector of integers with Skellam noise."""
    fine = ((2 * orders - 1) * l2**2 + 6 * l1) / (4 * variance**2)
    return orders * l2**2 / (2 * variance) + np.minimum(fine, 1.5 * l1 / variance)


def poisson_sample(curve: Curve, rate: float, *, symmetric: bool) -> Curve:
    """Returns the curve of a mechanism on a Poisson sample; units are added or removed.

    It bounds both directions. If the mechanism is one sum with noise that is as likely
    as its opposite (`symmetric`), a reflection exchanges both neighbours, and the
    direction that has a formula is the larger one.
    """
    further = 0.0 if symmetric else math.log(3)

    def logs(order, terms):
        factors = np.where(terms > 2, further, 0.0) + terms * math.log(rate)
        return factors + (order - terms) * math.log1p(-rate)

    def first(order):
        here = math.log1p((order - 1) * rate)
        return (order - 1) * math.log1p(-rate) + here

    return _sampled(curve, rate, logs, first)


def fixed_sample(curve: Curve, rate: float) -> Curve:
    """Returns the curve of a mechanism on a fixed sample; a unit is replaced."""

    def logs(order, terms):
        del order
        return terms * math.log(rate) + math.log(2)

    return _sampled(curve, rate, logs, lambda order: 0.0, fixed=True)


def exchanged(curve: Curve) -> Curve:
    """Returns the curve of two neighbours that are each one step from a third."""

    def both(orders):
        known = np.append(curve(GRID), np.inf)

        def at(wanted):
            return known[np.searchsorted(GRID, np.maximum(GRID[0], wanted - 1e-9))]

        ways = [
            (orders - 1 / p) / (orders - 1) * at(p * orders)
            + at((p * orders - 1) / (p - 1))
            for p in HOLDER
        ]
        return np.min(ways, axis=0)

    return both


def _sampled(curve, rate, logs, first, fixed=False) -> Curve:
    """Returns the least of a mechanism's own curve and of that of its samples."""
    if rate >= 1:
        return curve

    def one(order, known):
        terms = np.arange(2, order + 1)
        exponents = _log_binomial(order, terms) + logs(order, terms)
        exponents += (terms - 1) * known[: len(terms)]
        if fixed:  # 4 (e^x - 1) in place of 2 e^x at the second order
            less = math.log(2) + math.log(-math.expm1(-known[0]))
            exponents[0] = min(exponents[0], exponents[0] + less)
        total = special.logsumexp([first(order), *exponents])
        return min(known[order - 2], max(0.0, total) / (order - 1))

    def sampled(orders):
        known = curve(np.arange(2, orders.max() + 1))
        distinct, where = np.unique(orders.astype(int), return_inverse=True)
        return np.array([one(order, known) for order in distinct])[where]

    return sampled


def _log_binomial(n: int, k: np.ndarray) -> np.ndarray:
    whole = special.gammaln(n + 1) - special.gammaln(n - k + 1)
    return whole - special.gammaln(k + 1)
