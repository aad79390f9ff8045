r"""Draws runs, sweeps and comparisons in one picture.

python -m launch.plot --workdir=/tmp/run --workdir=/tmp/other --out=/tmp/both.png
python -m launch.plot --workdir=/tmp/run --out=/tmp/run.pdf --x=up --x=epsilon \
    --label='run=SAFL, 1/100' --title='Digits' --reach=0.9

The test score against rounds, bytes up and all bytes, or what --x names. There is a
line for each run, each setting of a sweep and each method of a comparison, with the
range of its seeds. --only=TEXT keeps the lines with that text in their names.
"""

from absl import flags

from fl_sketch.sweep import plots
from launch import command

WORKDIR = flags.DEFINE_multi_string("workdir", None, "A folder of results; repeat it.")
ONLY = flags.DEFINE_multi_string("only", [], "Text of the names to keep; repeat it.")
OUT = flags.DEFINE_string("out", None, "The picture: a png, pdf or svg file.")
X = flags.DEFINE_multi_enum(
    "x",
    list(plots.DEFAULT),
    list(plots.ABSCISSAS),
    "What to draw against, a panel each; repeat it.",
)
METRIC = flags.DEFINE_string("metric", "", "What to draw; by default the first metric.")
LABEL = flags.DEFINE_multi_string("label", [], "NAME=text: a line's words; repeat it.")
TITLE = flags.DEFINE_string("title", "", "The words above the picture.")
REACH = flags.DEFINE_float(
    "reach", None, "Also print the rounds and bytes that each line took to this score."
)
flags.mark_flags_as_required(["workdir", "out"])


def main():
    """Draws the folders into one picture, and prints the names of its lines."""
    lines = plots.plot(
        WORKDIR.value,
        OUT.value,
        ONLY.value,
        xs=X.value,
        metric=METRIC.value,
        labels=LABEL.value,
        title=TITLE.value,
        reach=REACH.value,
    )
    print(*lines, f"picture in {OUT.value}", sep="\n")


if __name__ == "__main__":
    command.run(main)
