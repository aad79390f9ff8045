"""Draws runs, sweeps and comparisons in one picture.

python -m launch.plot --workdir=/tmp/run --workdir=/tmp/other --out=/tmp/both.png

Test accuracy against rounds, bytes up and all bytes: a line for each run, for each
point of a sweep and each method of a comparison, with the range of its seeds.
--only=TEXT keeps the lines with that text in their names.
"""

from absl import flags

from fl_sketch.sweep import plots
from launch import command

WORKDIR = flags.DEFINE_multi_string("workdir", None, "A folder of results; repeat it.")
ONLY = flags.DEFINE_multi_string("only", [], "Text of the names to keep; repeat it.")
OUT = flags.DEFINE_string("out", None, "The picture, a png file.")
flags.mark_flags_as_required(["workdir", "out"])


def main():
    """Draws the folders into one picture, and prints the names of its lines."""
    for name in plots.plot(WORKDIR.value, OUT.value, ONLY.value):
        print(name)
    print(f"picture in {OUT.value}")


if __name__ == "__main__":
    command.run(main)
