r"""Prints the messages, bytes and privacy of a config, before a run.

python -m launch.plan --config=configs/quickstart.py

The first lines are those that launch.train begins with.
"""

from absl import flags

from configs import default
from fl_sketch.run import plan, prepare
from launch import command, options, parsing

CONFIG = parsing.config_flag()
DATA_DIR = options.data_dir()
flags.mark_flag_as_required("config")


def main():
    """Prints the plan of --config."""
    command.print_notes(CONFIG.value, default.get_config())
    setup = prepare(CONFIG.value, DATA_DIR.value)
    print(*plan.lines(setup), sep="\n")


if __name__ == "__main__":
    command.run(main)
