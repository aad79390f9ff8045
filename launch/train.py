"""Trains what a config describes, and writes its numbers to a folder.

python -m launch.train --config=configs/safl_mnist.py --workdir=/tmp/run
python -m launch.train --config=configs/default.py --workdir=/tmp/two --config.rounds=9
"""

import os
import sys

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from fl_sketch import experiment
from fl_sketch.experiment.loop import NotFinite
from fl_sketch.experiment.records import Records

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/.")
WORKDIR = flags.DEFINE_string("workdir", None, "A fresh folder for the results.")
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "The folder of raw data sets; by default FL_SKETCH_DATA."
)
flags.mark_flags_as_required(["config", "workdir"])

ROW = "{:>7} {:>11} {:>10} {:>13} {:>9} {:>9} {:>8}"
HEAD = (
    "round",
    "train loss",
    "test loss",
    "test accuracy",
    "MB up",
    "MB down",
    "rounds/s",
)


def main(argv):
    """Builds the experiment, runs it and prints a row for each evaluation."""
    del argv
    logging.set_verbosity(logging.WARNING)  # jax reports every backend it lacks
    config = CONFIG.value
    try:
        built = experiment.build(config, DATA_DIR.value)
        records = Records(WORKDIR.value, config.to_dict())
    except (ValueError, TypeError, FileNotFoundError) as error:
        sys.exit(_refuse(error))

    facts = built.facts
    print(
        f"{facts['algorithm']}: {facts['d']} parameters, {facts['sketch_size']} "
        f"numbers a message, {facts['clients']} clients, {facts['devices']} devices"
    )
    print(ROW.format(*HEAD))

    def on_row(row):
        records.row(row)
        print(
            ROW.format(
                row["round"],
                f"{row['train_loss']:.4f}",
                f"{row['test_loss']:.4f}",
                f"{row['test_accuracy']:.4f}",
                f"{row['bytes_up_total'] / 1e6:.2f}",
                f"{row['bytes_down_total'] / 1e6:.2f}",
                f"{row['rounds_per_second']:.1f}",
            ),
            flush=True,
        )

    try:
        experiment.train(
            built, rounds=config.rounds, eval_every=config.eval_every, on_row=on_row
        )
    except NotFinite as error:
        sys.exit(_refuse(error))
    records.summary(facts, config.rounds)
    print(f"results in {WORKDIR.value}")


def _refuse(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    # On a CPU every core is a device of its own, visiting its share of the clients.
    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    app.run(main)
