r"""Trains a grid of configs and ranks them.

python -m launch.sweep --config=configs/default.py --workdir=/tmp/sweep \
    --over=client.rate=0.03,0.1,0.3 --over=seed=0,1 --over=sketch.compression=10,20

Run the same command again to resume: finished programs are kept.
"""

from absl import flags

from configs import default
from fl_sketch.sweep import sweep
from launch import command, options, parsing

CONFIG = parsing.config_flag()
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the results.")
OVER = flags.DEFINE_multi_string(
    "over", [], "KEY=VALUE,VALUE: config key and its values. Repeatable."
)
MAP = flags.DEFINE_enum(
    "map",
    None,
    ["loop", "vmap"],
    "Run points in turn or at once; default: by platform.",
)
DATA_DIR = options.data_dir()
flags.mark_flags_as_required(["config", "workdir"])


def main():
    """Runs the sweep of --config, or resumes it."""
    command.print_notes(CONFIG.value, default.get_config())
    arguments = CONFIG.value, OVER.value, WORKDIR.value, DATA_DIR.value
    sweep(*arguments, how=MAP.value)


if __name__ == "__main__":
    command.run(main)
