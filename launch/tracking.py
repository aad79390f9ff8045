"""Measures gradient tracking (FedSKETCHGATE) on clients with different minima.

python -m launch.tracking
python -m launch.tracking --rows=5 --cols=40 --rounds=2000 --out=/tmp/tracking.csv

Prints a row for each algorithm, at the best of several server rates: the distance to
the minimum after training. The algorithms are FedSKETCH and FedSKETCHGATE with PRIVIX
and HEAPRIX, and the same without a sketch. FedSKETCHGATE runs with the gain of its
control terms as the paper prints it, and with the exact one.
"""

from absl import flags

from fl_sketch.experiments import gradient_tracking
from launch import command

PARAMETERS = flags.DEFINE_integer("parameters", 200, "Parameters d.", lower_bound=2)
CLIENTS = flags.DEFINE_integer("clients", 10, "Number of clients.", lower_bound=2)
STEPS = flags.DEFINE_integer("steps", 5, "Local steps tau per round.", lower_bound=1)
ROWS = flags.DEFINE_integer("rows", 5, "Rows of the count sketch.", lower_bound=1)
COLS = flags.DEFINE_integer("cols", 20, "Columns of the count sketch.", lower_bound=1)
ROUNDS = flags.DEFINE_integer(
    "rounds", 2000, "Rounds, with all clients in each.", lower_bound=1
)
OUT = flags.DEFINE_string("out", None, "csv file for the rows.")
SERVER_RATES = (0.01, 0.03, 0.1, 0.3, 1.0)


def main():
    """Prints the table for the problem of the flags, and keeps it with --out."""
    task = gradient_tracking.problem(
        d=PARAMETERS.value, clients=CLIENTS.value, steps=STEPS.value
    )
    measured = gradient_tracking.measure(
        task,
        rows=ROWS.value,
        cols=COLS.value,
        rounds=ROUNDS.value,
        server_rates=SERVER_RATES,
    )
    gradient_tracking.TABLE.record(measured, OUT.value)


if __name__ == "__main__":
    command.run(main)
