"""The noise that a promise takes, by its kind and by the bits of a number; no jax."""

import math
from collections.abc import Iterator, Sequence

from fl_sketch.core import validate
from fl_sketch.privacy import accounting, lattice, tails
from fl_sketch.privacy.guarantee import rounded_up
from fl_sketch.privacy.lattice import Integers
from fl_sketch.privacy.plans import Plan

ROW = "  {:<44} {:>16} {:>12} {:>15}"
FLOAT_BYTES = 4


def lines(
    plan: Plan, *, numbers: int, bits: Sequence[int], epsilon: float, delta: float
) -> Iterator[str]:
    """Yields lines of text: floats, then kinds of integer noise at every size.

    If the server draws the noise, it is one discrete Gaussian.

    An error is the standard deviation of what is released around the sum of messages,
    noise and rounding together, over that of floats.

    Args:
      plan: the plan with floats.
      numbers: the numbers of a message.
      bits: the bits of a number, one row for each.
      epsilon: the epsilon of the promise.
      delta: its delta.

    Raises:
      ValueError: in one line, for impossible bits, or a plan that cannot be.
    """
    validate.at_least_one(numbers=numbers)
    sums = [integers_of(plan, each) for each in bits]
    for one in sums:
        lattice.require(one, 0.0)
    promise = {"epsilon": epsilon, "delta": delta}
    floats = accounting.calibrate(plan._replace(coordinates=numbers), **promise)
    shared = bool(sums[0].smallest)
    whose = "clients, in shares" if shared else "the server"
    yield (
        f"messages of {numbers} numbers, {lattice.padded(numbers)} as integers, whose "
        f"noise is drawn by {whose}:"
    )
    yield ROW.format("", "noise multiplier", "rms error", "bytes a message")
    size = str(FLOAT_BYTES * numbers)
    yield ROW.format("floats, Gaussian", rounded_up(floats, 6), "1", size)
    for kind in lattice.KINDS if shared else (lattice.OF_SERVER,):
        for one in sums:
            name, size = f"{one.bits} bits, {kind}", str(one.bytes_up(numbers))
            own = with_integers(plan, one, kind, numbers)
            try:
                z = accounting.calibrate(own, **promise)
            except ValueError:
                yield ROW.format(name, "too few bits", "", size)
                continue
            error = rounded_up(error_of(own, z) / floats)
            yield ROW.format(name, rounded_up(z, 6), error, size)


def integers_of(plan: Plan, bits: int) -> Integers:
    """Returns integers for the cohorts of a plan.

    Clients draw shares of the noise where the accountant knows such cohorts.
    """
    size, most = round(plan.population * plan.rate), 0
    if plan.sampling == "poisson":
        most = tails.places_for(plan.population, plan.sample)
    shared = plan.relation == "replace_one" and plan.sampling != "poisson"
    return Integers(bits, most or size, smallest=size if shared else 0)


def with_integers(plan: Plan, integers: Integers, kind: str, numbers: int) -> Plan:
    """Returns a plan whose messages of so many numbers are integers."""
    own = integers.of((numbers,) * plan.releases)
    return plan._replace(
        noise=kind,
        integers=own,
        coordinates=sum(own.lengths),
        shares=max(1, own.smallest),
    )


def error_of(plan: Plan, noise_multiplier: float) -> float:
    """Returns the standard deviation of a number of a released sum, over C.

    Each client's rounding adds at most a quarter of a step's square.
    """
    assert plan.integers is not None
    scale = lattice.scale(plan.integers, noise_multiplier, plan.integers.lengths[0])
    rounding = plan.population * plan.rate / (4 * scale**2)
    return math.sqrt(noise_multiplier**2 + rounding)
