r"""Attacks the privacy that a config claims, and says what was found beside the claim.

python -m launch.audit --config=configs/private_safl.py --workdir=/tmp/audit
python -m launch.audit --config=configs/private_safl.py --workdir=/tmp/audit \
    --trials=2000000 --rounds=1 --canaries=0

Two attacks: a game of a few rounds, played again and again with a client and without
it, and a run of the config with made-up clients whose presence is guessed. What they
find is a lower bound on epsilon: below the claim it proves nothing, above it the claim
is wrong. A config claims an epsilon for every delta, and the game is judged at the
delta where the attack does best. The folder gets audit.csv, a row for each. The exit
code is 0 if no claim is broken, 1 if one is, and 2 for a config that cannot be audited.
"""

import os
import sys

from absl import flags

from fl_sketch.core import files
from fl_sketch.experiments import audit
from fl_sketch.privacy.guarantee import rounded_up
from launch import command, options, parsing

BROKEN = 1  # the exit code
COLUMNS = "{:<66} {:>8} {:>8} {:>8} {:>8} {:>5} {:>8} {:>7}"
HEAD = COLUMNS.format(
    "", "at delta", "claimed", "found", "at most", "sure", "trials", "seconds"
)

CONFIG = parsing.config_flag()
WORKDIR = flags.DEFINE_string("workdir", None, "The folder for the results.")
DATA_DIR = options.data_dir()
AUDIT = options.of(audit.Audit)
flags.mark_flags_as_required(["config", "workdir"])


def line(row):
    """Returns a result as text, below `HEAD`."""
    return COLUMNS.format(
        row.what,
        f"{row.delta:.2g}",
        rounded_up(row.claimed_epsilon),
        f"{row.found_epsilon:.4g}",
        f"{row.most_epsilon:.4g}",
        f"{row.confidence:.0%}",
        row.trials,
        f"{row.seconds:.1f}",
    )


def main():
    """Runs the audits of --config, and exits with 1 if a claim is broken."""
    effort = AUDIT()
    audit.check(effort)
    files.writable_folder(WORKDIR.value)
    path, rows = os.path.join(WORKDIR.value, "audit.csv"), []
    for result in audit.run(CONFIG.value, effort, DATA_DIR.value):
        if isinstance(result, str):
            print(result, flush=True)
            continue
        if not rows:
            print(HEAD)
        print(line(result), flush=True)
        rows.append(result)
        files.write_rows(path, [row._asdict() for row in rows])
    broken = [row for row in rows if row.broken]
    for row in broken:
        print(
            f"BROKEN: {row.what}: epsilon is at least {row.found_epsilon:.4g}, with "
            f"{row.confidence:.0%} confidence, and {rounded_up(row.claimed_epsilon)} "
            f"is claimed at delta {row.delta:.2g}"
        )
    if broken:
        sys.exit(BROKEN)
    print("nothing found is above its claim, which proves nothing")


if __name__ == "__main__":
    command.run(main)
