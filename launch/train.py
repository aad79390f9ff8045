r"""Trains a config, and writes metrics, checkpoints and the model to a folder.

python -m launch.train --config=configs/default.py --workdir=/tmp/run --config.rounds=9
python -m launch.train --config=configs/safl_mnist.py --workdir=/tmp/mnist \
    --data_dir=DATA

Run the same command again to resume a stopped run. --extend=ROUNDS without --config
continues the run in the folder to more rounds. On several machines, run the same
command on each. Add --distributed if jax finds the machines itself (SLURM, GKE, Open
MPI, TPU pods), or --coordinator=HOST:PORT --num_processes=N --process_id=I, where I is
0 ... N - 1.
"""

import contextlib

from absl import flags

from configs import default
from fl_sketch.engine import multiprocess
from fl_sketch.run import processes, run
from fl_sketch.workdir import trackers
from fl_sketch.workdir.config_file import config_of
from launch import command, options, parsing

CONFIG = parsing.config_flag()
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the results.")
DATA_DIR = options.data_dir()
EXTEND = flags.DEFINE_integer(
    "extend",
    None,
    "New total number of rounds for the run in --workdir, without --config.",
)
INIT_FROM = flags.DEFINE_string(
    "init_from",
    None,
    "First parameters: the folder of a run or of a release, FILE.npz or "
    "FILE.safetensors.",
)
ACCEPT = flags.DEFINE_list(
    "accept",
    [],
    "Differences to accept when a run resumes: versions, devices. Results may then "
    "differ in the last bits.",
)
PLUGIN = flags.DEFINE_list(
    "plugin",
    [],
    "With --extend: values FILE.py:NAME of the stored config whose code may run.",
)
TENSORBOARD = flags.DEFINE_bool("tensorboard", False, "Also write TensorBoard events.")
TRACKER = flags.DEFINE_enum(
    "tracker", None, trackers.NAMES, "Also send every row to this tracking service."
)
DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "Run on all machines that jax finds."
)
COORDINATOR = flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0.")
NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "Total number of processes."
)
PROCESS_ID = flags.DEFINE_integer("process_id", None, "Number of this process, from 0.")
flags.mark_flag_as_required("workdir")


def main():
    """Runs --config, alone or with other processes, and notes the keys it ignores."""
    joined = COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value
    several = DISTRIBUTED.value or any(value is not None for value in joined)
    config, extend = CONFIG.value, EXTEND.value is not None
    if extend == (config is not None):
        got = "both" if extend else "neither"
        msg = f"Expected --config (to start or resume a run) or --extend, got {got}."
        raise ValueError(msg)
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
