r"""Estimates the eigenvalues of the Hessian at every checkpoint of a run.

python -m launch.train --config=configs/quickstart.py --workdir=/tmp/run \
    --config.checkpoint_every=50 --config.checkpoint_keep=0
python -m launch.spectrum --workdir=/tmp/run

Writes spectrum.csv and spectrum.png to the folder of the run. The interval of the
intrinsic dimension is a 95 % Student interval over the probes. It does not cover the
error of Lanczos: `least` and `most` bound the dimension by the moments that the steps
have seen.
"""

import functools

from absl import flags

from configs import default
from fl_sketch.audit import run_spectrum
from launch import command, options

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a run.")
DATA_DIR = options.data_dir()
EXAMPLES = flags.DEFINE_integer(
    "examples", 1000, "Number of training examples in the loss.", lower_bound=1
)
PROBES = flags.DEFINE_integer(
    "probes", 10, "Number of random starting vectors.", lower_bound=1
)
STEPS = flags.DEFINE_integer(
    "steps",
    60,
    "Lanczos steps; more tighten the bounds `least` and `most`.",
    lower_bound=1,
)
PLUGIN = flags.DEFINE_list(
    "plugin", [], "Values FILE.py:NAME of the stored config whose code may run."
)
flags.mark_flag_as_required("workdir")


def main():
    """Prints a row for each checkpoint of the run in --workdir, and writes them."""
    run_spectrum.of_run(
        WORKDIR.value,
        default.get_config(),
        DATA_DIR.value,
        examples=EXAMPLES.value,
        probes=PROBES.value,
        steps=STEPS.value,
        plugin=PLUGIN.value,
        log=functools.partial(print, flush=True),
    )


if __name__ == "__main__":
    command.run(main)
