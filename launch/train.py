"""Trains what a config describes, and writes its numbers to a folder.

python -m launch.train --config=configs/safl_mnist.py --workdir=/tmp/run
python -m launch.train --config=configs/default.py --workdir=/tmp/two --config.rounds=9

The same command again goes on where the last one stopped, however that was.
"""

import os
import sys

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from fl_sketch import experiment
from fl_sketch.experiment.checkpoint import Unreadable

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/.")
WORKDIR = flags.DEFINE_string("workdir", None, "The folder for the results.")
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "The folder of raw data sets; by default FL_SKETCH_DATA."
)
flags.mark_flags_as_required(["config", "workdir"])

WRONG = (ValueError, TypeError, OSError, experiment.NotFinite, Unreadable)
STOPPED = 130  # what shells take for "interrupted"


def main(argv):
    """Runs the experiment and turns what goes wrong into a line and an exit code."""
    del argv
    logging.set_verbosity(logging.WARNING)  # jax reports every backend it lacks
    try:
        experiment.run(CONFIG.value, WORKDIR.value, DATA_DIR.value)
    except WRONG as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except experiment.Stopped as stopped:
        print(f"{stopped}; the same command goes on from there", file=sys.stderr)
        sys.exit(STOPPED)


if __name__ == "__main__":
    # On a CPU every core is a device of its own, visiting its share of the clients.
    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    app.run(main)
