"""Compares methods: each is tuned on its own grid, then run with several seeds.

python -m launch.compare --config=configs/compare_fedsketch.py:iid,5,20x40 \
    --workdir=/tmp/fedsketch
python -m launch.compare --config=configs/compare_fedsketch.py:iid,5,20x40 \
    --workdir=/tmp/fedsketch --only=FedAvg --set=rounds=10

The same command again keeps the sweeps that are done, and runs the others. A file
for this command has `get_comparison`, which may take what follows the colon.
"""

import inspect
import os
import runpy

from absl import flags

from fl_sketch.experiment import comparison
from launch import command

CONFIG = flags.DEFINE_string("config", None, "A file configs/compare_*.py[:which].")
WORKDIR = flags.DEFINE_string("workdir", None, "The folder for the results.")
ONLY = flags.DEFINE_multi_string("only", [], "A method's name; may be repeated.")
SET = flags.DEFINE_multi_string("set", [], "key=value, for every method's config.")
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "The folder of raw data sets; by default FL_SKETCH_DATA."
)
flags.mark_flags_as_required(["config", "workdir"])


def load(config: str) -> comparison.Comparison:
    """Returns the comparison of a file, or of what it calls by the name after a colon.

    Raises:
      FileNotFoundError, ValueError: in one line.
    """
    path, _, which = config.partition(":")
    if not os.path.isfile(path):
        msg = f"Expected --config to name a file, got {path}."
        raise FileNotFoundError(msg)
    make = runpy.run_path(path).get("get_comparison")
    if make is None:
        msg = f"Expected a file with get_comparison, got {path}: see launch.train."
        raise ValueError(msg)
    if which and not inspect.signature(make).parameters:
        msg = f"Expected {path} alone, got {config}."
        raise ValueError(msg)
    return make(which) if which else make()


def main():
    """Runs the comparison."""
    arguments = load(CONFIG.value), WORKDIR.value, DATA_DIR.value
    comparison.run(*arguments, settings=SET.value, only=ONLY.value)


if __name__ == "__main__":
    command.run(main)
