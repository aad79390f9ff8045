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

import sys

from absl import flags

from fl_sketch.audit import config_audit
from fl_sketch.core import files
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
AUDIT = options.of(config_audit.Audit)
flags.mark_flags_as_required(["config", "workdir"])


def main():
    """Runs the audits of --config, and exits with 1 if a claim is broken."""
    effort = AUDIT()
    config_audit.check(effort)
    folder, rows, broken = files.writable_folder(WORKDIR.value), [], []
    for result in config_audit.run(CONFIG.value, effort, DATA_DIR.value):
        if isinstance(result, str):
            print(result, flush=True)
            continue
        if not rows:
            print(LEGEND, HEAD, sep="\n")
        claim = rounded_up(result.claimed_epsilon)
        line = COLUMNS.format(
            result.what,
            f"{result.delta:.2g}",
            claim,
            f"{result.found_epsilon:.4g}",
            f"{result.most_epsilon:.4g}",
            f"{result.confidence:.0%}",
            result.trials,
            f"{result.seconds:.1f}",
        )
        print(line, flush=True)
        rows.append(result._asdict())
        files.write_rows(folder / "audit.csv", rows)
        if result.broken:
            broken.append(
                f"BROKEN: {result.what}: at delta = {result.delta:.2g} epsilon is at "
                f"least {result.found_epsilon:.4g} ({result.confidence:.0%} "
                f"confidence), but the accountant claims {claim}"
            )
    if broken:
        print(*broken, sep="\n")
        sys.exit(BROKEN)
    print("no claim is broken; this does not prove the claims")


if __name__ == "__main__":
    command.run(main)
