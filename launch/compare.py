r"""Compares methods: each is tuned on its own grid, then run with several seeds.

python -m launch.compare --config=configs/compare_fedsketch.py:iid,5,20x40 \
    --workdir=/tmp/fedsketch --data_dir=DATA
python -m launch.compare --config=configs/compare_fedsketch.py:iid,5,20x40 \
    --workdir=/tmp/few --data_dir=DATA --only='iid tau=5 FedAvg' --set=rounds=10

The same command again keeps the sweeps that are done, and runs the others. A file
for this command has `get_comparison`, which may take what follows the colon.
"""

from absl import flags

from fl_sketch.privacy.composition import Trials
from fl_sketch.sweep import comparison
from launch import command

CONFIG = flags.DEFINE_string("config", None, "A file configs/compare_*.py[:which].")
WORKDIR = flags.DEFINE_string("workdir", None, "The folder for the results.")
ONLY = flags.DEFINE_multi_string(
    "only", [], "A method's name; a wrong one prints all names. May be repeated."
)
SET = flags.DEFINE_multi_string("set", [], "key=value, for every method's config.")
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "The folder of raw data sets; by default FL_SKETCH_DATA."
)
TRIALS = flags.DEFINE_float(
    "trials",
    0.0,
    "Tune privately, by this many runs on average, a number that stays secret; 0: by "
    "the grid, all of which is counted.",
)
SHAPE = flags.DEFINE_float(
    "trials_shape", 1.0, "Of their number: 1 geometric, 0 logarithmic."
)
flags.mark_flags_as_required(["config", "workdir"])


def main():
    """Runs the comparison of --config, or what an earlier command left of it."""
    compared = comparison.load(CONFIG.value)
    trials = Trials(TRIALS.value, SHAPE.value) if TRIALS.value else None
    for name, method in compared.methods.items() if not ONLY.value else ():
        command.print_notes(
            comparison.config_of(compared, method, []), compared.base, name
        )
    arguments = compared, WORKDIR.value, DATA_DIR.value
    comparison.run(*arguments, settings=SET.value, only=ONLY.value, trials=trials)


if __name__ == "__main__":
    command.run(main)
