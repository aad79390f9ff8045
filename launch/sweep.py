r"""Trains a grid of configs, and says which point of it is the best.

python -m launch.sweep --config=configs/default.py --workdir=/tmp/sweep \
    --over=client.rate=0.03,0.1,0.3 --over=seed=0,1 --over=sketch.compression=10,20

The same command again keeps the programs that are done, and runs the others.
"""

from absl import flags

from configs import default
from fl_sketch.sweep import sweep
from launch import command, parsing

CONFIG = parsing.config_flag()
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


def main():
    """Runs the sweep of --config, or what an earlier command left of it."""
    command.print_notes(CONFIG.value, default.get_config())
    arguments = CONFIG.value, OVER.value, WORKDIR.value, DATA_DIR.value
    sweep(*arguments, how=MAP.value)


if __name__ == "__main__":
    command.run(main)
