r"""Trains a config, and writes metrics, checkpoints and the model to a folder.

python -m launch.train --config=configs/default.py --workdir=/tmp/run --config.rounds=9
python -m launch.train --config=configs/safl_mnist.py --workdir=/tmp/mnist \
    --data_dir=DATA

Run the same command again to resume a stopped run, also with more --config.rounds. On
several machines, run the same command on each. Add --distributed if jax finds the
machines itself (SLURM, GKE, Open MPI, TPU pods), or --coordinator=HOST:PORT
--num_processes=N --process_id=I, where I is 0 ... N - 1.
"""

import contextlib

from absl import flags

from configs import default
from fl_sketch.engine import multiprocess
from fl_sketch.run import processes, run
from launch import command, options, parsing

CONFIG = parsing.config_flag()
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the results.")
DATA_DIR = options.data_dir()
INIT_FROM = flags.DEFINE_string(
    "init_from",
    None,
    "First parameters: the folder of a run or of a release, FILE.npz or "
    "FILE.safetensors.",
)
TENSORBOARD = flags.DEFINE_bool("tensorboard", False, "Also write TensorBoard events.")
WANDB = flags.DEFINE_bool("wandb", False, "Also send rows to wandb.")
DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "Run on all machines that jax finds."
)
COORDINATOR = flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0.")
NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "Total number of processes."
)
PROCESS_ID = flags.DEFINE_integer("process_id", None, "Number of this process, from 0.")
flags.mark_flags_as_required(["config", "workdir"])


def main():
    """Runs --config, alone or with other processes, and notes the keys it ignores."""
    joined = COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value
    several = DISTRIBUTED.value or any(value is not None for value in joined)
    config = CONFIG.value
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
            wandb=WANDB.value,
        )


if __name__ == "__main__":
    command.run(main)
