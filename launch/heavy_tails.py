"""Measures clipping where gradients have heavy tails, for SAFL and for SGD.

python -m launch.heavy_tails
python -m launch.heavy_tails --tails=3,1.5 --rounds=1000 --out=/tmp/heavy_tails.csv

Prints a row for each method, with the rate and the threshold that are best on other
runs: the final loss over the initial, its median and 0.95 quantile over runs. Noise has
moments below the order of its tail, so that it has no variance below 2.
"""

from absl import flags

from fl_sketch.experiments import heavy_tails
from launch import command

TAILS = flags.DEFINE_list("tails", ["3", "1.5", "1.2"], "Tails of the noise.")
PARAMETERS = flags.DEFINE_integer("parameters", 200, "Parameters d.", lower_bound=2)
NUMBERS = flags.DEFINE_integer("numbers", 20, "Numbers of a sketch.", lower_bound=1)
ROUNDS = flags.DEFINE_list("rounds", ["100", "400"], "Numbers of rounds.")
RUNS = flags.DEFINE_integer("runs", 40, "Runs of a method.", lower_bound=1)
OUT = flags.DEFINE_string("out", None, "csv file for the rows.")


def main():
    """Prints the table, and keeps it with --out."""
    tails, lengths = [float(one) for one in TAILS.value], [int(r) for r in ROUNDS.value]
    scenes = [
        heavy_tails.scene(d=PARAMETERS.value, tail=tail, rounds=rounds)
        for tail in tails
        for rounds in lengths
    ]
    rows = (
        row
        for one in scenes
        for row in heavy_tails.measure(one, numbers=NUMBERS.value, runs=RUNS.value)
    )
    heavy_tails.TABLE.record(rows, OUT.value)


if __name__ == "__main__":
    command.run(main)
