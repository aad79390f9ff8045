r"""Trains what a config describes, and writes its numbers to a folder.

python -m launch.train --config=configs/default.py --workdir=/tmp/run --config.rounds=9
python -m launch.train --config=configs/safl_mnist.py --workdir=/tmp/mnist \
    --data_dir=DATA

The same command again goes on where the last one stopped, however that was; with
--extend=ROUNDS and no --config, the run in the folder becomes one of more rounds. On
several machines it is the same command on each, with --distributed where jax finds
the others by itself (SLURM, GKE, Open MPI, TPU pods), or else with all three of
--coordinator=HOST:PORT --num_processes=N --process_id=0 ... N - 1.
"""

import contextlib

from absl import flags

from configs import default
from fl_sketch.engine import multiprocess
from fl_sketch.run import processes, run
from fl_sketch.workdir import trackers
from fl_sketch.workdir.config_file import config_of
from launch import command, parsing

CONFIG = parsing.config_flag()
WORKDIR = flags.DEFINE_string("workdir", None, "The folder for the results.")
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "The folder of raw data sets; by default FL_SKETCH_DATA."
)
EXTEND = flags.DEFINE_integer(
    "extend", None, "More rounds, in all, for the run in --workdir: no --config."
)
INIT_FROM = flags.DEFINE_string(
    "init_from", None, "What to begin with: a run's folder, FILE.npz, FILE.safetensors."
)
ACCEPT = flags.DEFINE_list(
    "accept",
    [],
    "What may differ from a run's beginning: versions, devices. What follows is then "
    "rounded in another way: it is not equal to the last bit.",
)
PLUGIN = flags.DEFINE_list(
    "plugin",
    [],
    "With --extend: the values FILE.py:NAME in the folder's config whose code may run.",
)
TENSORBOARD = flags.DEFINE_bool("tensorboard", False, "Also write TensorBoard events.")
TRACKER = flags.DEFINE_enum(
    "tracker", None, trackers.NAMES, "Also send every row to this service."
)
DISTRIBUTED = flags.DEFINE_bool("distributed", False, "Join the others, found by jax.")
COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port of process 0.")
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "How many in all.")
PROCESS_ID = flags.DEFINE_integer("process_id", None, "Which of them this is.")
flags.mark_flag_as_required("workdir")


def main():
    """Runs --config, alone or with other processes; says which keys it never reads."""
    joined = COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value
    several = DISTRIBUTED.value or any(value is not None for value in joined)
    config, extend = CONFIG.value, EXTEND.value is not None
    if extend == (config is not None):
        msg = "Expected --config to begin or go on with a run, or --extend, got "
        raise ValueError(msg + ("both." if extend else "none."))
    if extend:
        config = config_of(WORKDIR.value, default.get_config(), PLUGIN.value)
        config.rounds = EXTEND.value
    if INIT_FROM.value is not None:
        config.model.init_from = INIT_FROM.value
    with processes.connected(*joined) if several else contextlib.nullcontext():
        if multiprocess.is_first():
            command.print_notes(config, default.get_config())
        run(
            config,
            WORKDIR.value,
            DATA_DIR.value,
            tensorboard=TENSORBOARD.value,
            extend=extend,
            accept=ACCEPT.value,
            tracker=TRACKER.value or "",
        )


if __name__ == "__main__":
    command.run(main)
