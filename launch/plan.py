r"""Prints the messages, bytes and privacy of a config, before a run.

python -m launch.plan --config=configs/quickstart.py
python -m launch.plan --config=configs/default.py --graph=ring

The first lines are those that launch.train begins with. --graph adds the bytes of the
same messages in a network without a server. It is ring, grid:4x5, complete or a file
of edges.
"""

from absl import flags

from fl_sketch.engine import gossip
from fl_sketch.run import plan, prepare
from launch import command, options, parsing

CONFIG = parsing.config_flag()
DATA_DIR = options.data_dir()
GRAPH = flags.DEFINE_string("graph", "", f"Network without a server: {gossip.GRAPHS}.")
flags.mark_flag_as_required("config")


def main():
    """Prints the plan of --config."""
    setup = prepare(CONFIG.value, DATA_DIR.value)
    print(*plan.lines(setup, GRAPH.value), sep="\n")


if __name__ == "__main__":
    command.run(main)
