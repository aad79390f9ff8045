"""The audit of a config, as a user starts it."""

import csv

import pytest

from tests import pages
from tests.launching import launch_python

pytestmark = pytest.mark.slow

COMMAND = pages.command_of("launch.audit", "docs/attacks.md")
SMALL = (
    "--config.rounds=3", "--trials=1", "--config.privacy.target_epsilon=2"
)  # fmt: skip
COLUMNS = ["what", "claimed_epsilon", "delta", "found_epsilon", "confidence", "trials"]

# Half the noise that is claimed.
WRONG = """
from fl_sketch.config import privacy
right = privacy.guarded
privacy.guarded = lambda c, b, z, *rest: right(c, b, z / 4, *rest)
from launch import audit, command
command.run(audit.main)
"""


def rows_in(folder):
    with open(folder / "audit.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_config_is_audited(tmp_path):
    done = launch_python(*pages.placed(COMMAND, tmp_path), *SMALL)
    assert done.returncode == 0, done.stderr
    _, head, game, last = done.stdout.splitlines()
    assert head.split()[:3] == ["delta", "claimed", "found"]
    assert game.startswith(
        "game: 3 rounds, 1 release each, poisson 1 of 4, add_remove "
    )
    assert last.startswith("the claim is not broken")
    (row,) = rows_in(tmp_path / "audit")
    assert list(row)[:6] == COLUMNS
    assert float(row["found_epsilon"]) <= float(row["claimed_epsilon"])
    assert float(row["confidence"]) == 0.95 and float(row["delta"]) >= 1e-5


def test_a_broken_claim_is_said_and_is_the_exit_code(tmp_path):
    config = "--config=configs/private_safl.py"
    done = launch_python("-c", WRONG, config, *SMALL, f"--workdir={tmp_path}")
    assert done.returncode == 1, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith(
        "BROKEN: game: 3 rounds, 1 release each, poisson 1 of 4, add_remove: "
    )
    (row,) = rows_in(tmp_path)
    assert float(row["found_epsilon"]) > float(row["claimed_epsilon"])
