"""Runs the experiments of results/ again.

python -m launch.reproduce --list
python -m launch.reproduce --only=song_trade --workdir=/tmp/again --data_dir=DATA

Each experiment gets its own folder in the workdir. Run the same command again to
resume: runs, sweeps and comparisons continue, other commands start again. The commands
are those of results/NAME/README.md. results/README.md has the verdicts on the papers'
claims.
"""

import os
import sys

from absl import flags

from fl_sketch.core import validate
from launch import command, options, reproductions

LIST = flags.DEFINE_bool("list", False, "List the experiments and exit.")
ONLY = flags.DEFINE_multi_string(
    "only", [], "Name of an experiment to run. Repeatable."
)
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the results.")
DATA_DIR = options.data_dir()


def main():
    """Prints the list, or runs the commands up to the first that fails."""
    known = reproductions.all_of()
    for name in ONLY.value:
        validate.one_of(tuple(known), only=name)
    chosen = {name: known[name] for name in ONLY.value or known}
    if LIST.value:
        for name, one in chosen.items():
            print(f"{name:16} {one.title} {one.time}.")
        return
    if not WORKDIR.value:
        msg = "Expected --workdir=FOLDER or --list, got neither."
        raise ValueError(msg)
    data = DATA_DIR.value or os.environ.get("FL_SKETCH_DATA", "")
    for name, one in chosen.items():
        failed = reproductions.run(one, os.path.join(WORKDIR.value, name), data)
        if failed:
            sys.exit(failed)


if __name__ == "__main__":
    command.run(main)
