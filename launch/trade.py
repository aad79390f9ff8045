"""Measures the bits that iterative sketching takes to an accuracy, against b.

python -m launch.trade
python -m launch.trade --operator=count_sketch --operator=gaussian --sizes=64 --seeds=5

Prints a row for each operator and size of a message; --out keeps them as a csv file.
"""

from absl import flags

from fl_sketch.algorithms import catalog
from fl_sketch.studies import song_trade
from launch import command

OPERATOR = flags.DEFINE_multi_enum(
    "operator", ["srht"], list(catalog.OPERATORS), "Which; may be repeated."
)
SIZES = flags.DEFINE_multi_integer(
    "sizes", [128, 64, 32, 16, 8, 4], "b, numbers of a message.", lower_bound=1
)
PARAMETERS = flags.DEFINE_integer("parameters", 128, "d, of the model.", lower_bound=2)
CLIENTS = flags.DEFINE_integer("clients", 5, "How many.", lower_bound=1)
CONDITION = flags.DEFINE_float("condition", 10.0, "L / mu.", lower_bound=1.0)
ACCURACY = flags.DEFINE_float(
    "accuracy", 0.01, "The part of f - f* that may be left.", 1e-12, 0.999
)
SEEDS = flags.DEFINE_integer(
    "seeds", 3, "Runs that a row is the mean of.", lower_bound=1
)
OUT = flags.DEFINE_string("out", None, "A csv file for the rows.")


def main():
    """Prints the table for the problem of the flags, and keeps it with --out."""
    task = song_trade.problem(
        d=PARAMETERS.value, clients=CLIENTS.value, condition=CONDITION.value, seed=0
    )
    measured = (
        row
        for operator in OPERATOR.value
        for row in song_trade.measure(
            task,
            SIZES.value,
            operator=operator,
            accuracy=ACCURACY.value,
            seeds=range(SEEDS.value),
        )
    )
    command.print_rows(song_trade, measured, OUT.value)


if __name__ == "__main__":
    command.run(main)
