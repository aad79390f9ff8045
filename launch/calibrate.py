r"""Finds the noise that a promise needs, and says what older formulas would take.

python -m launch.calibrate --epsilon=2 --delta=1e-5 --clients=1000 --cohort=50 \
--rounds=200

For an algorithm of two exchanges, such as HEAPRIX, say --releases=2.
"""

from absl import flags

from fl_sketch.privacy import accounting, literature
from launch import command

EPSILON = flags.DEFINE_float(
    "epsilon", None, "The epsilon to promise; smaller is more private."
)
DELTA = flags.DEFINE_float(
    "delta", 1e-5, "The delta of the promise; below 1 / clients."
)
CLIENTS = flags.DEFINE_integer("clients", None, "How many there are in all.")
COHORT = flags.DEFINE_integer(
    "cohort", None, "Clients in a round; with poisson, on average."
)
ROUNDS = flags.DEFINE_integer("rounds", None, "How many rounds.")
RELEASES = flags.DEFINE_integer("releases", 1, "Guarded exchanges of a round.")
SAMPLING = flags.DEFINE_enum(
    "sampling", "poisson", accounting.SAMPLINGS, "How cohorts are drawn."
)
RELATION = flags.DEFINE_enum(
    "relation", "add_remove", accounting.RELATIONS, "What neighbours differ in."
)
flags.mark_flags_as_required(["epsilon", "clients", "cohort", "rounds"])


def main():
    """Prints the table for the plan that the flags describe.

    Raises:
      ValueError: in one line, for a plan that cannot be.
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
    plan = accounting.Plan(
        steps=ROUNDS.value,
        sample=COHORT.value,
        population=CLIENTS.value,
        sampling=SAMPLING.value,
        releases=RELEASES.value,
        relation=RELATION.value,
    )
    for line in literature.table(plan, epsilon=EPSILON.value, delta=DELTA.value):
        print(line)


if __name__ == "__main__":
    command.run(main)
