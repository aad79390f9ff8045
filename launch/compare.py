r"""Compares methods: tunes each on its own grid, then runs it with several seeds.

python -m launch.compare --config=configs/compare_fedsketch.py:iid,5,20x40 \
    --workdir=/tmp/fedsketch --data_dir=DATA
python -m launch.compare --config=configs/compare_fedsketch.py:iid,5,20x40 \
    --workdir=/tmp/few --data_dir=DATA --only='iid tau=5 FedAvg' --set=rounds=10

Run the same command again to resume: finished sweeps are kept. The config file defines
`get_comparison`; the text after the colon is its argument.
"""

from absl import flags

from fl_sketch.sweep import comparison
from launch import command, options

CONFIG = flags.DEFINE_string("config", None, "File configs/compare_*.py[:ARGUMENT].")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the results.")
ONLY = flags.DEFINE_multi_string(
    "only", [], "Name of a method to run; a wrong one prints all names. Repeatable."
)
SET = flags.DEFINE_multi_string("set", [], "KEY=VALUE for every method's config.")
DATA_DIR = options.data_dir()
flags.mark_flags_as_required(["config", "workdir"])


def main():
    """Runs the comparison of --config, or resumes it."""
    compared = comparison.load(CONFIG.value)
    for name, method in compared.methods.items() if not ONLY.value else ():
        command.print_notes(
            comparison.config_of(compared, method, []), compared.base, name
        )
    arguments = compared, WORKDIR.value, DATA_DIR.value
    comparison.run(*arguments, settings=SET.value, only=ONLY.value)


if __name__ == "__main__":
    command.run(main)
