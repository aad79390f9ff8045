"""Runs again what the folders of results came from.

python -m launch.reproduce --list
python -m launch.reproduce --only=song_trade --workdir=/tmp/again --data_dir=DATA

Each gets a folder of its own in the workdir; with the same command again runs, sweeps
and comparisons go on where they were stopped, and the others begin anew. The commands
are those of results/NAME/README.md; the papers' numbers and ours stand side by side in
results/README.md.
"""

import os
import sys

from absl import flags

from fl_sketch.core import validate
from launch import command, options, reproductions

LIST = flags.DEFINE_bool("list", False, "Print what there is, and run nothing.")
ONLY = flags.DEFINE_multi_string("only", [], "A name of the list; may be repeated.")
WORKDIR = flags.DEFINE_string("workdir", None, "The folder for the results.")
DATA_DIR = options.data_dir()


def main():
    """Prints the list, or runs the commands up to the first that fails."""
    known = reproductions.all_of()
    for name in ONLY.value:
        validate.one_of(tuple(known), only=name)
    chosen = {name: known[name] for name in ONLY.value or known}
    if LIST.value:
        for name, one in chosen.items():
            print(f"{name:16} {one.time:12} {one.title}")
        return
    if not WORKDIR.value:
        msg = "Expected --workdir to name a folder, or --list, got neither."
        raise ValueError(msg)
    data = DATA_DIR.value or os.environ.get("FL_SKETCH_DATA", "")
    for name, one in chosen.items():
        failed = reproductions.run(one, os.path.join(WORKDIR.value, name), data)
        if failed:
            sys.exit(failed)


if __name__ == "__main__":
    command.run(main)
