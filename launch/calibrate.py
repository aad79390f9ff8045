r"""Computes the noise for a given epsilon, and compares it with older formulas.

python -m launch.calibrate --epsilon=2 --delta=1e-5 --clients=1000 --cohort=50 \
--rounds=200

Pass --releases=2 for an algorithm with two exchanges per round, such as HEAPRIX. With
--numbers, the length of a message, a second table compares kinds of integer noise and
numbers of bits.
"""

from absl import flags

from fl_sketch.privacy import bits_table, literature, plans
from launch import command

EPSILON = flags.DEFINE_float(
    "epsilon", None, "Target epsilon; smaller is more private."
)
DELTA = flags.DEFINE_float("delta", 1e-5, "Delta of the guarantee; below 1 / clients.")
CLIENTS = flags.DEFINE_integer("clients", None, "Total number of clients.")
COHORT = flags.DEFINE_integer(
    "cohort", None, "Clients per round; on average for --sampling=poisson."
)
ROUNDS = flags.DEFINE_integer("rounds", None, "Number of rounds.")
RELEASES = flags.DEFINE_integer("releases", 1, "Noised sums per round.")
SAMPLING = flags.DEFINE_enum(
    "sampling", "poisson", plans.SAMPLINGS, "How the cohort of a round is drawn."
)
RELATION = flags.DEFINE_enum(
    "relation",
    "add_remove",
    plans.RELATIONS,
    "Neighbouring relation: a client is added or removed, or replaced by another.",
)
NUMBERS = flags.DEFINE_integer(
    "numbers", 0, "Length of a message, for the table of integers; 0 = no table.", 0
)
BITS = flags.DEFINE_multi_integer(
    "bits", [10, 12, 16, 20], "Bits of a number that is an integer; may be repeated."
)
flags.mark_flags_as_required(["epsilon", "clients", "cohort", "rounds"])


def main():
    """Prints the table for the run that the flags describe.

    Raises:
      ValueError: in one line, for flags that contradict each other.
    """
    if ROUNDS.value < 1:
        msg = f"Expected rounds >= 1, got rounds={ROUNDS.value}."
        raise ValueError(msg)
    if not 1 <= COHORT.value <= CLIENTS.value:
        msg = (
            f"Expected 1 <= cohort <= {CLIENTS.value} (the clients), "
            f"got cohort={COHORT.value}."
        )
        raise ValueError(msg)
    if SAMPLING.value == "everyone" and COHORT.value != CLIENTS.value:
        msg = (
            f"Expected cohort={CLIENTS.value} (the clients) with sampling=everyone, "
            f"got cohort={COHORT.value}."
        )
        raise ValueError(msg)
    plan = plans.Plan(
        steps=ROUNDS.value,
        sample=COHORT.value,
        population=CLIENTS.value,
        sampling=SAMPLING.value,
        releases=RELEASES.value,
        relation=RELATION.value,
    )
    for line in literature.table(plan, epsilon=EPSILON.value, delta=DELTA.value):
        print(line)
    if NUMBERS.value:
        sizes = {"numbers": NUMBERS.value, "bits": BITS.value}
        for line in bits_table.lines(
            plan, **sizes, epsilon=EPSILON.value, delta=DELTA.value
        ):
            print(line, flush=True)


if __name__ == "__main__":
    command.run(main)
