"""Trains a grid of configs, and says which point of it is the best.

python -m launch.sweep --config=configs/default.py --workdir=/tmp/sweep \
    --over=client.rate=0.03,0.1,0.3 --over=seed=0,1 --over=sketch.compression=10,20

The same command again keeps the programs that are done, and runs the others.
"""

import os
import sys

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from fl_sketch import experiment

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/.")
WORKDIR = flags.DEFINE_string("workdir", None, "The folder for the results.")
OVER = flags.DEFINE_multi_string(
    "over", [], "key=value,value: a key of the config and its values; may be repeated."
)
MAP = flags.DEFINE_enum(
    "map", None, ["loop", "vmap"], "Points in turn or at once; by default by platform."
)
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "The folder of raw data sets; by default FL_SKETCH_DATA."
)
flags.mark_flags_as_required(["config", "workdir"])

STOPPED = 130  # what shells take for "interrupted"


def main(argv):
    """Runs the sweep and turns what goes wrong into a line and an exit code."""
    del argv
    logging.set_verbosity(logging.WARNING)  # jax reports every backend it lacks
    arguments = (CONFIG.value, OVER.value, WORKDIR.value, DATA_DIR.value)
    try:
        experiment.sweep(*arguments, how=MAP.value)
    except (ValueError, TypeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except experiment.Stopped as stopped:
        print(f"{stopped}; programs that are done are kept", file=sys.stderr)
        sys.exit(STOPPED)


if __name__ == "__main__":
    # On a CPU every core is a device of its own, visiting its share of the clients.
    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    app.run(main)
