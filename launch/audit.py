r"""Tests the noise and the accountant of a config by an attack on its privacy.

python -m launch.audit --config=configs/private_safl.py --workdir=/tmp/audit
python -m launch.audit --config=configs/private_safl.py --workdir=/tmp/audit \
    --trials=2000000 --rounds=1

The attack is a game of a few rounds, played many times with a client and without it;
the attacker tells the two apart. It gives a lower bound on epsilon. What is claimed is
the accountant's epsilon for this game, and not that of the config. A bound above it
contradicts the claim, with the confidence of --confidence. A bound below it proves
nothing. The game is judged at the delta at which the attack does best. The folder gets
audit.csv, with one row. The exit code is 0 if the claim is not broken, 1 if it is, and
2 for a config that cannot be audited.
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
    """Audits --config, and exits with 1 if its claim is broken."""
    effort = AUDIT()
    config_audit.check(effort)
    folder = files.writable_folder(WORKDIR.value)
    result = config_audit.run(CONFIG.value, effort, DATA_DIR.value)
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
    print(LEGEND, HEAD, line, sep="\n")
    files.write_rows(folder / "audit.csv", [result._asdict()])
    if result.broken:
        print(
            f"BROKEN: {result.what}: at delta = {result.delta:.2g} epsilon is at least "
            f"{result.found_epsilon:.4g} ({result.confidence:.0%} confidence), but the "
            f"accountant claims {claim}"
        )
        sys.exit(BROKEN)
    print("the claim is not broken; this does not prove it")


if __name__ == "__main__":
    command.run(main)
