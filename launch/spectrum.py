r"""Shows the Hessian's eigenvalues at every checkpoint of a run.

python -m launch.train --config=configs/quickstart.py --workdir=/tmp/run \
    --config.checkpoint_every=50 --config.checkpoint_keep=0
python -m launch.spectrum --workdir=/tmp/run

Writes spectrum.csv and spectrum.png beside them. The interval of the intrinsic
dimension is Student's, of 95 %, over probes; least and most are what it may be by the
moments that the steps have seen, of which that interval knows nothing.
"""

from absl import flags

from configs import default
from fl_sketch.experiments import hessian
from launch import command, options

WORKDIR = flags.DEFINE_string("workdir", None, "The folder of a run.")
DATA_DIR = options.data_dir()
EXAMPLES = flags.DEFINE_integer(
    "examples", 1000, "Training examples that the loss is the mean of.", lower_bound=1
)
PROBES = flags.DEFINE_integer(
    "probes", 10, "Random vectors that Lanczos begins from.", lower_bound=1
)
STEPS = flags.DEFINE_integer(
    "steps", 60, "Of Lanczos; more bring least and most nearer.", lower_bound=1
)
PLUGIN = flags.DEFINE_list(
    "plugin", [], "The values FILE.py:NAME in the folder's config whose code may run."
)
flags.mark_flag_as_required("workdir")


def main():
    """Prints a row for each checkpoint of the run in --workdir, and writes them."""
    hessian.of_run(
        WORKDIR.value,
        default.get_config(),
        DATA_DIR.value,
        examples=EXAMPLES.value,
        probes=PROBES.value,
        steps=STEPS.value,
        plugin=PLUGIN.value,
    )


if __name__ == "__main__":
    command.run(main)
