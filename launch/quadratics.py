"""Compares clipping with normalisation on quadratics (Das et al., Figures 1 to 3).

python -m launch.quadratics --workdir=/tmp/das_quadratics
python -m launch.quadratics --workdir=/tmp/few --rounds=50 --seeds=1

Prints a row for each starting point, threshold C and rate eta. The folder gets the rows
as table.csv, and figures.png.
"""

import os

from absl import flags

from fl_sketch.core import files
from fl_sketch.experiments import quadratics
from launch import command

WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the results.")
ROUNDS = flags.DEFINE_integer("rounds", 500, "Rounds per run.", lower_bound=1)
SEEDS = flags.DEFINE_integer("seeds", 3, "Number of runs to average.", lower_bound=1)
flags.mark_flags_as_required(["workdir"])


def main():
    """Runs all settings with our accountant's noise; prints and writes the rows."""
    settings = quadratics.Settings(rounds=ROUNDS.value, seeds=range(SEEDS.value))
    files.writable_folder(WORKDIR.value)
    z, theirs = settings.noise_multiplier, settings.paper_noise_multiplier
    print(f"noise multiplier {z:.2f} (the formula of the paper: {theirs:.2f})")
    walked = quadratics.paths(settings, z)
    rows = quadratics.rows(settings, walked)
    quadratics.TABLE.record(rows, os.path.join(WORKDIR.value, "table.csv"))
    quadratics.draw(settings, walked, os.path.join(WORKDIR.value, "figures.png"))


if __name__ == "__main__":
    command.run(main)
