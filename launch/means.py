"""Measures the error of private means of integers, against Gaussian noise on floats.

python -m launch.means --out=/tmp/means.csv
python -m launch.means --clients=100 --bits=16 --epsilon=2 --releases=50

Prints a row for each number of clients, epsilon, kind of noise and number of bits. An
error is that of the mean of vectors on a sphere, one of each client, which all take
part and each add a share of the noise; --out keeps the rows as a csv file.
"""

from absl import flags

from fl_sketch.experiments import mean_estimation
from launch import command

CLIENTS = flags.DEFINE_multi_integer(
    "clients", [100, 1000], "Number of clients. Repeatable.", 1
)
BITS = flags.DEFINE_multi_integer(
    "bits", [10, 12, 14, 16, 18], "Bits of a number. Repeatable."
)
EPSILON = flags.DEFINE_multi_float(
    "epsilon", [1.0, 4.0, 10.0], "Epsilon of the guarantee. Repeatable."
)
DELTA = flags.DEFINE_float("delta", 1e-5, "Delta of the guarantee.")
NUMBERS = flags.DEFINE_integer("numbers", 250, "Numbers of a vector.", 1)
RELEASES = flags.DEFINE_integer("releases", 400, "Releases of each mean.", 1)
SEED = flags.DEFINE_integer("seed", 0, "Seed of vectors and noise.", 0)
OUT = flags.DEFINE_string("out", None, "csv file for the rows.")


def main():
    """Prints the table, and keeps it with --out."""
    rows = mean_estimation.run(
        CLIENTS.value,
        BITS.value,
        EPSILON.value,
        numbers=NUMBERS.value,
        delta=DELTA.value,
        releases=RELEASES.value,
        seed=SEED.value,
    )
    mean_estimation.TABLE.record(rows, OUT.value)


if __name__ == "__main__":
    command.run(main)
