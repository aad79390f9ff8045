r"""Computes the noise for a given epsilon, and what it does to the mean of messages.

python -m launch.calibrate --epsilon=2 --delta=1e-5 --clients=1000 --cohort=50 \
--rounds=200 --numbers=130
python -m launch.calibrate --unit=example --epsilon=3 --examples=600 --batch=60 \
--steps=4 --cohort=10 --rounds=100 --numbers=650

Pass --releases=2 for an algorithm with two exchanges per round, such as HEAPRIX. With
--unit=client and --numbers, the length of a message, a second table compares floats and
integers of several numbers of bits. With --unit=example, --numbers are the parameters
that train, and --clients is not needed.
"""

import math
from collections.abc import Iterator

from absl import flags

from fl_sketch.core import validate
from fl_sketch.privacy import accounting, lattice, noise_size
from fl_sketch.privacy.accounting import Plan
from fl_sketch.privacy.guarantee import Guarantee, promised, rounded_up
from launch import command

EPSILON = flags.DEFINE_float(
    "epsilon", None, "Target epsilon; smaller is more private."
)
DELTA = flags.DEFINE_float("delta", 1e-5, "Delta of the guarantee; below 1 / clients.")
UNIT = flags.DEFINE_enum(
    "unit", "client", ("client", "example"), "What is protected, as privacy.unit."
)
CLIENTS = flags.DEFINE_integer("clients", None, "Total number of clients.")
COHORT = flags.DEFINE_integer(
    "cohort", None, "Clients per round; on average for --sampling=poisson."
)
ROUNDS = flags.DEFINE_integer("rounds", None, "Number of rounds.", 1)
RELEASES = flags.DEFINE_integer("releases", 1, "Noised sums per round.")
SAMPLING = flags.DEFINE_enum(
    "sampling",
    "poisson",
    accounting.SAMPLINGS,
    "How the cohort of a round is drawn; of --unit=client.",
)
RELATION = flags.DEFINE_enum(
    "relation",
    None,
    accounting.RELATIONS,
    "Neighbouring relation: a unit is added or removed (the default for clients), or "
    "replaced by another (for examples).",
)
EXAMPLES = flags.DEFINE_integer(
    "examples", None, "Examples of the smallest client, of --unit=example."
)
BATCH = flags.DEFINE_integer("batch", None, "Examples per step, of --unit=example.")
STEPS = flags.DEFINE_integer("steps", 1, "Steps per round, of --unit=example.", 1)
NUMBERS = flags.DEFINE_integer(
    "numbers", 0, "Length of a message, to say what its noise will do; 0 = unknown.", 0
)
BITS = flags.DEFINE_multi_integer(
    "bits", [10, 12, 16, 20], "Bits of a number that is an integer; may be repeated."
)
flags.mark_flags_as_required(["epsilon", "cohort", "rounds"])

ROW = "  {:<28} {:>16} {:>12} {:>15}"
FLOAT_BYTES = 4


def main():
    """Prints the noise for the run that the flags describe.

    Raises:
      ValueError: in one line, for flags that contradict each other.
    """
    if not 0 < EPSILON.value < math.inf:
        msg = f"Expected epsilon > 0, got epsilon={EPSILON.value}."
        raise ValueError(msg)
    example = UNIT.value == "example"
    needed = {"examples": EXAMPLES, "batch": BATCH} if example else {"clients": CLIENTS}
    for name, flag in needed.items():
        if flag.value is None:
            msg = f"Expected --{name} with --unit={UNIT.value}, got none."
            raise ValueError(msg)
    plan = plan_of_examples() if example else plan_of_clients()
    plan = plan._replace(coordinates=max(1, NUMBERS.value) * plan.releases)
    accounting.require_delta(plan, DELTA.value)
    for line in noise(plan, STEPS.value if example else 1):
        print(line)
    if NUMBERS.value and not example:
        for line in integers(plan):
            print(line, flush=True)


def plan_of_clients() -> Plan:
    """Returns the plan of a run that protects clients."""
    cohort, clients = COHORT.value, CLIENTS.value
    everyone = SAMPLING.value == "everyone" and cohort != clients
    if everyone or not 1 <= cohort <= clients:
        allowed = f"cohort={clients}" if everyone else f"1 <= cohort <= {clients}"
        msg = f"Expected {allowed} (the clients) with sampling={SAMPLING.value}, got "
        raise ValueError(msg + f"cohort={cohort}.")
    return Plan(
        steps=ROUNDS.value,
        sample=cohort,
        population=clients,
        sampling=SAMPLING.value,
        releases=RELEASES.value,
        relation=RELATION.value or "add_remove",
    )


def plan_of_examples() -> Plan:
    """Returns the plan of one client that takes part in every round."""
    validate.at_least_one(batch=BATCH.value, cohort=COHORT.value)
    validate.at_most(EXAMPLES.value, "the examples", batch=BATCH.value)
    return Plan(
        steps=ROUNDS.value * STEPS.value,
        sample=BATCH.value,
        population=EXAMPLES.value,
        sampling="everyone" if BATCH.value == EXAMPLES.value else "fixed",
        relation=RELATION.value or "replace_one",
    )


def noise(plan: Plan, per_round: int) -> Iterator[str]:
    """Yields lines on the noise of floats, by each accountant that knows the plan."""
    unit, sums = UNIT.value, "noised sum" + "s" * (plan.releases > 1)
    yield (
        f"epsilon = {EPSILON.value:g} at delta = {DELTA.value:g} per {unit}: "
        f"{plan.steps} samples ({plan.sampling}) of {plan.sample} among "
        f"{plan.population} {unit}s, {plan.releases} {sums} of each, relation "
        f"{plan.relation}"
    )
    best = accounting.accountant_for(plan)
    for name in accounting.ACCOUNTANTS:
        try:
            own = calibrated(plan, name, per_round)
        except ValueError:
            if name == best:
                raise
            continue
        z = own.noise_multiplier
        yield f"noise multiplier by {name.upper()}: {rounded_up(z, 6)}"
    own = calibrated(plan, best, per_round)
    r, z = plan.population * plan.rate, own.noise_multiplier
    yield (
        f"noise on each number of a sum: {rounded_up(z, 5)} C; on the mean over {r:g}: "
        f"{rounded_up(z / r, 5)} C, where C is the bound on one {unit}"
    )
    if NUMBERS.value:
        yield from noise_size.lines(own, clients=COHORT.value)


def calibrated(plan: Plan, accountant: str, per_round: int = 1) -> Guarantee:
    """Returns the guarantee with the least noise that keeps the target."""
    return promised(
        plan,
        rounds=ROUNDS.value,
        delta=DELTA.value,
        target_epsilon=EPSILON.value,
        accountant=accountant,
        per_round=per_round,
        unit=UNIT.value,
    )


def integers(plan: Plan) -> Iterator[str]:
    """Yields lines that compare floats with integers of several numbers of bits.

    Clients draw shares of the noise where the accountant knows such cohorts. An error
    is the standard deviation of what is released around the sum of messages, noise and
    rounding together, over that of floats.
    """
    size, count = round(plan.population * plan.rate), NUMBERS.value
    shared = plan.relation == "replace_one" and plan.sampling != "poisson"
    places, smallest = size, size if shared else 0
    if plan.sampling == "poisson":
        places = accounting.places_for(plan.population, plan.sample)
    floats = calibrated(plan, "auto").noise_multiplier
    whose = "clients, in shares" if shared else "the server"
    yield (
        f"messages of {count} numbers, {lattice.padded(count)} as integers, whose "
        f"noise is drawn by {whose}:"
    )
    yield ROW.format("", "noise multiplier", "rms error", "bytes a message")
    yield ROW.format("floats", rounded_up(floats, 6), "1", str(FLOAT_BYTES * count))
    for bits in BITS.value:
        sums = lattice.Integers(bits, places, smallest).of((count,) * plan.releases)
        lattice.require(sums)
        name, sent = f"{bits} bits", str(sums.bytes_up(count))
        try:
            z = calibrated(plan._replace(integers=sums), "auto").noise_multiplier
        except ValueError:
            yield ROW.format(name, "too few bits", "", sent)
            continue
        error = lattice.deviation(sums, z, size) / floats
        yield ROW.format(name, rounded_up(z, 6), rounded_up(error), sent)


if __name__ == "__main__":
    command.run(main)
