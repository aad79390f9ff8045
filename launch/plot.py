"""Plots runs, sweeps and comparisons in one picture.

python -m launch.plot --workdir=/tmp/run --workdir=/tmp/other --out=/tmp/both.png
python -m launch.plot --workdir=/tmp/run --out=/tmp/run.pdf --x=up --x=epsilon

The picture shows the test score against rounds, bytes up and all bytes, or against what
--x names. Each run, setting of a sweep and method of a comparison is a line, with a
band for the range of its seeds. --only=TEXT keeps the lines with TEXT in their names.
"""

from absl import flags

from fl_sketch.sweep import plots
from launch import command

WORKDIR = flags.DEFINE_multi_string("workdir", None, "Folder of results. Repeatable.")
ONLY = flags.DEFINE_multi_string("only", [], "Text of the names to keep. Repeatable.")
OUT = flags.DEFINE_string("out", None, "Picture to write: a png, pdf or svg file.")
X = flags.DEFINE_multi_enum(
    "x",
    list(plots.DEFAULT),
    list(plots.ABSCISSAS),
    "Horizontal axis of a panel. Repeatable.",
)
METRIC = flags.DEFINE_string("metric", "", "Metric to plot; default: the first.")
flags.mark_flags_as_required(["workdir", "out"])


def main():
    """Draws the folders into one picture, and prints the names of its lines."""
    arguments = WORKDIR.value, OUT.value, ONLY.value
    lines = plots.plot(*arguments, xs=X.value, metric=METRIC.value)
    print(*lines, f"wrote {OUT.value}", sep="\n")


if __name__ == "__main__":
    command.run(main)
