"""Measures the bits that iterative sketching needs, by size of the message.

python -m launch.trade
python -m launch.trade --operator=srht --sizes=64 --steps=1 --steps=4 --apart=0.5

Prints two rows for each operator and message size b: one with the step size of the
theorem of Song et al., one with the best step size. Each row also has the rounds that
the same step size needs without a sketch. The first rows are gradient descent with its
own step sizes. With --apart > 0 each client has its own minimum.
"""

from collections.abc import Iterator

from absl import flags

from fl_sketch.algorithms import catalog
from fl_sketch.core import validate
from fl_sketch.experiments import rounds_vs_bits
from fl_sketch.experiments.verify import known_problems
from launch import command

OPERATOR = flags.DEFINE_multi_enum(
    "operator", ["srht"], list(catalog.OPERATORS), "Sketch operator. Repeatable."
)
SIZES = flags.DEFINE_multi_integer(
    "sizes", [64, 32, 16, 8, 4], "Numbers b per message. Repeatable.", lower_bound=1
)
STEPS = flags.DEFINE_multi_integer(
    "steps", [1], "Local steps K per round. Repeatable.", lower_bound=1
)
APART = flags.DEFINE_multi_float(
    "apart", [0.0], "Distance between the minima of clients. Repeatable.", 0.0
)
PARAMETERS = flags.DEFINE_integer("parameters", 128, "Parameters d.", lower_bound=2)
CLIENTS = flags.DEFINE_integer("clients", 5, "Number of clients.", lower_bound=1)
CONDITION = flags.DEFINE_float(
    "condition", 10.0, "Condition number L / mu.", lower_bound=1.0
)
ACCURACY = flags.DEFINE_float(
    "accuracy", 1e-4, "Target for f - f*, as a share of its first value.", 1e-12, 0.999
)
SEEDS = flags.DEFINE_integer(
    "seeds", 5, "Number of runs to average per row.", lower_bound=1
)
OUT = flags.DEFINE_string("out", None, "csv file for the rows.")


def rows() -> Iterator[rounds_vs_bits.Row]:
    """Yields the rows of all problems of the flags."""
    messages = [(operator, b) for operator in OPERATOR.value for b in SIZES.value]
    for apart in APART.value:
        task = known_problems.quadratics(
            d=PARAMETERS.value,
            clients=CLIENTS.value,
            condition=CONDITION.value,
            seed=0,
            apart=apart,
        )
        for steps in STEPS.value:
            seeds = range(SEEDS.value)
            count = rounds_vs_bits.Count(task, steps, ACCURACY.value, seeds)
            yield from rounds_vs_bits.measure(count, messages)


def main():
    """Prints the table for the problems of the flags, and keeps it with --out."""
    for b in SIZES.value:
        validate.at_most(PARAMETERS.value, "the parameters", b=b)
    rounds_vs_bits.TABLE.record(rows(), OUT.value)


if __name__ == "__main__":
    command.run(main)
