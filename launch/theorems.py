"""Compares the bound of each theorem with measured values.

python -m launch.theorems
python -m launch.theorems --paper=song --operator=gaussian --out=/tmp/theorems.csv

Each theorem of fl_sketch.theory runs with its own step size and number of rounds, on a
small problem whose constants are known exactly, and whose runs are made to meet its
assumptions. A row has the bound and the measured value. The file of --out also has the
problem and its constants.
"""

from collections.abc import Iterator

from absl import flags

from fl_sketch import theory
from fl_sketch.algorithms import catalog
from fl_sketch.experiments.verify import chen, das, haddadpour, leakage, song
from fl_sketch.experiments.verify.rows import TABLE, Row
from launch import command

PAPERS = ("song", "chen", "das", "haddadpour")
PAPER = flags.DEFINE_multi_enum("paper", PAPERS, PAPERS, "Paper. Repeatable.")
OPERATOR = flags.DEFINE_multi_enum(
    "operator",
    ["count_sketch", "srht"],
    list(catalog.OPERATORS),
    "Sketch operator for Song et al. and Chen et al. Repeatable.",
)
OUT = flags.DEFINE_string("out", None, "csv file for the rows.")
ASSUMED = (
    "assumptions: met in every row, as its problem and its run were made for them; "
    "launch.plan says for a config which are met"
)


def rows() -> Iterator[Row]:
    """Yields the rows of the papers of the flags."""
    if "song" in PAPER.value:
        yield from song.inversion()
        for operator in OPERATOR.value:
            yield from song.song(operator)
    if "chen" in PAPER.value:
        yield from chen.tails()
        yield chen.early()
        for operator in dict.fromkeys(("identity", *OPERATOR.value)):
            yield from chen.chen(operator)
    if "das" in PAPER.value:
        yield from das.das()
    if "haddadpour" in PAPER.value:
        yield from leakage.count_sketch()
        yield haddadpour.fedavg()
        for rows_of in (haddadpour.fedsketch, haddadpour.fedsketchgate):
            for variant in ("privix", "heaprix"):
                yield from rows_of(variant)


def main():
    """Prints the table, and keeps it with --out."""
    for operator in OPERATOR.value if "chen" in PAPER.value else ():
        theory.tail(operator, d=1, b=1, failure=1.0)  # refuses those that have none
    TABLE.record(rows(), OUT.value)
    print(ASSUMED)


if __name__ == "__main__":
    command.run(main)
