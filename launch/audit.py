r"""Attacks the privacy that a config claims, and says what was found beside the claim.

python -m launch.audit --config=configs/private_safl.py --workdir=/tmp/audit
python -m launch.audit --config=configs/private_safl.py --workdir=/tmp/audit \
    --trials=2000000 --rounds=1 --canaries=0

Two attacks: a game of a few rounds, played again and again with a client and without
it, and a run of the config with made-up clients whose presence is guessed. What they
find is a lower bound on epsilon: below the claim it proves nothing, above it the claim
is wrong. The folder gets audit.csv, a row for each. The exit code is 0 if no claim is
broken, 1 if one is, and 2 for a config that cannot be audited.
"""

import os
import sys

from absl import flags

from fl_sketch.core import files
from fl_sketch.experiments import audit
from launch import command, parsing

BROKEN = 1  # the exit code
DEFAULT = audit.Audit()

CONFIG = parsing.config_flag()
WORKDIR = flags.DEFINE_string("workdir", None, "The folder for the results.")
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "The folder of raw data sets; by default FL_SKETCH_DATA."
)
TRIALS = flags.DEFINE_integer(
    "trials", DEFAULT.trials, "Games with the client, and as many without."
)
ROUNDS = flags.DEFINE_integer("rounds", DEFAULT.rounds, "Of a game.")
CANARIES = flags.DEFINE_integer(
    "canaries", DEFAULT.canaries, "Made-up clients of a run; 0: no such run."
)
REPETITIONS = flags.DEFINE_integer(
    "repetitions", DEFAULT.repetitions, "Such runs, whose guesses are taken together."
)
CONFIDENCE = flags.DEFINE_float(
    "confidence", DEFAULT.confidence, "In each of the bounds."
)
flags.mark_flags_as_required(["config", "workdir"])


def main():
    """Runs the audits of --config, and exits with 1 if a claim is broken."""
    asked = audit.Audit(
        trials=TRIALS.value,
        rounds=ROUNDS.value,
        canaries=CANARIES.value,
        repetitions=REPETITIONS.value,
        confidence=CONFIDENCE.value,
    )
    audit.check(asked)
    files.writable_folder(WORKDIR.value)
    out, rows = os.path.join(WORKDIR.value, "audit.csv"), []
    for found in audit.run(CONFIG.value, asked, DATA_DIR.value):
        if isinstance(found, str):
            print(found, flush=True)
            continue
        if not rows:
            print(audit.HEAD)
        print(audit.line(found), flush=True)
        rows.append(found)
        files.write_rows(out, [row._asdict() for row in rows])
    broken = [row for row in rows if row.broken]
    for row in broken:
        print(f"BROKEN: {audit.verdict(row)}")
    if broken:
        sys.exit(BROKEN)
    print("nothing found is above its claim, which proves nothing")


if __name__ == "__main__":
    command.run(main)
