"""Measures the bits that iterative sketching takes to an accuracy, against b.

python -m launch.trade
python -m launch.trade --operator=count_sketch --sizes=200 --sizes=20 --seeds=5

Prints a row for each size of a message; --out appends them to a csv file.
"""

import csv

from absl import flags

from fl_sketch.algorithms import catalog
from fl_sketch.experiment import trade
from launch import command

OPERATOR = flags.DEFINE_enum("operator", "srht", list(catalog.OPERATORS), "Which.")
SIZES = flags.DEFINE_multi_integer("sizes", [128, 64, 32, 16, 8, 4], "b, up to d.")
PARAMETERS = flags.DEFINE_integer("parameters", 128, "d.")
CLIENTS = flags.DEFINE_integer("clients", 5, "How many.")
CONDITION = flags.DEFINE_float("condition", 10.0, "L / mu.", lower_bound=1.0)
ACCURACY = flags.DEFINE_float("accuracy", 0.01, "The part of f - f* that may be left.")
SEEDS = flags.DEFINE_integer("seeds", 3, "How many runs a row is the mean of.")
OUT = flags.DEFINE_string("out", None, "A csv file to append the rows to.")


def main():
    """Prints the table."""
    task = trade.problem(
        d=PARAMETERS.value, clients=CLIENTS.value, condition=CONDITION.value, seed=0
    )
    print(trade.HEAD)
    rows = trade.measure(
        task,
        SIZES.value,
        operator=OPERATOR.value,
        accuracy=ACCURACY.value,
        seeds=range(SEEDS.value),
    )
    for row in rows:
        print(trade.line(row), flush=True)
        if OUT.value:
            with open(OUT.value, "a", newline="") as file:
                csv.writer(file).writerow(row)


if __name__ == "__main__":
    command.run(main)
