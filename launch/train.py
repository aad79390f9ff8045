"""Trains what a config describes, and writes its numbers to a folder.

python -m launch.train --config=configs/safl_mnist.py --workdir=/tmp/run
python -m launch.train --config=configs/default.py --workdir=/tmp/two --config.rounds=9

The same command again goes on where the last one stopped, however that was.
"""

from absl import flags
from ml_collections import config_flags

from fl_sketch import experiment
from launch import command

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/.")
WORKDIR = flags.DEFINE_string("workdir", None, "The folder for the results.")
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "The folder of raw data sets; by default FL_SKETCH_DATA."
)
flags.mark_flags_as_required(["config", "workdir"])


def main():
    """Runs the experiment."""
    experiment.run(CONFIG.value, WORKDIR.value, DATA_DIR.value)


if __name__ == "__main__":
    command.run(main)
