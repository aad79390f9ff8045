r"""Tests the noise and the accountant of a config by attacks on its privacy.

python -m launch.audit --config=configs/private_safl.py --workdir=/tmp/audit
python -m launch.audit --config=configs/private_safl.py --workdir=/tmp/audit \
    --trials=2000000 --rounds=1 --canaries=0

There are two attacks. The first is a game of a few rounds, played many times with a
client and without it; the attacker tells the two apart. The second is a run of the
config with canaries, made-up clients whose presence the attacker guesses. Each attack
gives a lower bound on epsilon. What is claimed is the accountant's epsilon for this
attack, and not that of the config. A bound above it contradicts the claim, with the
confidence of --confidence. A bound below it proves nothing. The game reports the delta
at which the attack does best. The folder gets audit.csv, with a row for each attack.
The exit code is 0 if no claim is broken, 1 if one is, and 2 for a config that cannot be
audited.
"""

import os
import sys

from absl import flags

from fl_sketch.core import files
from fl_sketch.experiments import audit
from fl_sketch.privacy.guarantee import rounded_up
from launch import command, options, parsing

BROKEN = 1  # the exit code
COLUMNS = "{:<74} {:>8} {:>8} {:>8} {:>8} {:>5} {:>8} {:>7}"
HEAD = COLUMNS.format(
    "", "delta", "claimed", "found", "limit", "conf.", "trials", "seconds"
)
LEGEND = (
    "epsilon that the accountant claims for the attack (not that of the config), the "
    "lower bound found by the attack, and the limit of what it can find: it cannot "
    "contradict a larger claim"
)

CONFIG = parsing.config_flag()
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the results.")
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
    path, rows, short = os.path.join(WORKDIR.value, "audit.csv"), [], []
    for result in audit.run(CONFIG.value, effort, DATA_DIR.value):
        if isinstance(result, str | audit.Noise):
            print(getattr(result, "what", result), flush=True)
            short += [result] * getattr(result, "broken", False)
            continue
        if not rows:
            print(LEGEND, HEAD, sep="\n")
        print(line(result), flush=True)
        rows.append(result)
        files.write_rows(path, [row._asdict() for row in rows])
    broken = [row for row in rows if row.broken]
    for row in broken:
        print(
            f"BROKEN: {row.what}: at delta = {row.delta:.2g} epsilon is at least "
            f"{row.found_epsilon:.4g} ({row.confidence:.0%} confidence), but the "
            f"accountant claims {rounded_up(row.claimed_epsilon)}"
        )
    for found in short:
        print(f"BROKEN: {found.what}")
    if broken or short:
        sys.exit(BROKEN)
    print("no claim is broken; this does not prove the claims")


if __name__ == "__main__":
    command.run(main)
