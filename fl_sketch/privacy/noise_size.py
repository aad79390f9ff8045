"""What noise does to a model, before a run: its size against that of the messages.

A released mean has noise of some norm. The largest mean that clients can send has norm
C, if all of their messages point one way. Where the noise is as long as that or longer,
a model can hardly learn from it; at `GOOD` it can.

For a mean over r clients of messages with b numbers the ratio is z sqrt(b) / r, with
the z of the sum: of one draw by the server, or of the shares of all r clients. Rounding
to integers adds to it. Over several releases b is their mean length. With noise at
local steps (`unit=example`), a client's step has noise of norm z C sqrt(d) / B on its
mean gradient of at most C, for a batch of B and d parameters. Noise is new in each of
the K steps and in each of the n clients of a round, so that the ratio of a round's mean
update is z sqrt(d) / (B sqrt(K n)).

>>> from fl_sketch.privacy.accounting import Plan
>>> from fl_sketch.privacy.guarantee import promised
>>> plan = Plan(steps=10, sample=100, population=1000, coordinates=2500)
>>> promise = promised(plan, rounds=10, noise_multiplier=3.0, delta=1e-5)
>>> ratio(promise, clients=100)
1.5
>>> [*lines(promise, clients=100)][1]
'the model will hardly learn; 0.3 needs one of: 500 clients a round, among as many \
times more; messages of 100 numbers; epsilon = 8.35'
"""

import math
from collections.abc import Iterator

from fl_sketch.privacy import accounting, lattice
from fl_sketch.privacy.guarantee import Guarantee, rounded_up

TOO_MUCH = 1.0
GOOD = 0.3


def ratio(guarantee: Guarantee, *, clients: float) -> float:
    """Returns the standard deviation of a mean's noise over the largest mean's norm."""
    plan, z = guarantee.plan, guarantee.noise_multiplier
    numbers = plan.coordinates / plan.releases
    if guarantee.unit == "example":
        return z * math.sqrt(numbers / (guarantee.per_round * clients)) / plan.sample
    return lattice.deviation(plan.integers, z, clients) * math.sqrt(numbers) / clients


def lines(guarantee: Guarantee | None, *, clients: float) -> Iterator[str]:
    """Yields how large the noise of a run is, and what helps if it is too large.

    Arguments are those of `ratio`. A number that helps is for all else as it is, the
    share of clients or examples in a round included.
    """
    if guarantee is None or not guarantee.private:
        return
    found, plan = ratio(guarantee, clients=clients), guarantee.plan
    yield (
        f"noise: its standard deviation on a mean is {rounded_up(found, 3)} times the "
        "largest mean that clients can send"
    )
    if math.isinf(guarantee.epsilon(guarantee.rounds) or 0):
        yield "epsilon is infinite: a larger noise multiplier would protect"
    if found <= TOO_MUCH:
        return
    by = found / GOOD
    short = math.floor(plan.coordinates / plan.releases / by**2)  # none: 0
    if guarantee.unit == "example":
        batch, many = math.ceil(plan.sample * by), math.ceil(clients * by**2)
        ways = [f"batches of {batch}, from as many times more examples"]
        ways += [f"{many} clients a round"]
        ways += [f"a part that trains of {short} numbers"] * bool(short)
    else:
        more = ", among as many times more" * (plan.sampling != "everyone")
        ways = [f"{math.ceil(clients * by)} clients a round{more}"]
        ways += [f"messages of {short} numbers"] * bool(short)
    weaker = guarantee.noise_multiplier / by
    promise = {"delta": guarantee.delta, "accountant": guarantee.accountant}
    spent = accounting.epsilon(plan, weaker, **promise)
    if math.isfinite(spent):
        ways.append(f"epsilon = {rounded_up(spent, 3)}")
    yield f"the model will hardly learn; {GOOD} needs one of: {'; '.join(ways)}"
