"""The first command that a newcomer runs: two runs and what one of them saves."""

import re

import pytest

from tests import pages
from tests.launching import launch

pytestmark = pytest.mark.slow
DIFFERENCE = re.compile(r"(\d\.\d{4}) (lower|higher)")


def difference(verdict):
    """Returns the difference of accuracies that a verdict ends with, signed."""
    number, word = DIFFERENCE.search(verdict).groups()
    return float(number) if word == "higher" else -float(number)


def test_quickstart_compares_a_sketch_with_everything(tmp_path):
    """And prints the table of the README; compiled as a newcomer's is."""
    done = launch("launch.quickstart", f"--workdir={tmp_path}", XLA_FLAGS="")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    first, *_, head, sketched, plain, legend, verdict = done.stdout.splitlines()
    assert first.startswith("SAFL: ") and "upload" in first
    assert head.split()[:2] == ["test", "accuracy"]
    name, accuracy, up, down = sketched.split()[1:5]
    assert (name, up, down) == ("1/20", "11.04", "24.07") and float(accuracy) > 0.95
    assert plain.split()[0] == "FedAdam" and plain.split()[2] == "220.84"
    assert verdict.startswith("SAFL, 1/20 uploaded 20.0 times fewer bytes than FedAdam")
    assert "per client and round" in legend
    apart = float(accuracy) - float(plain.split()[1])
    assert difference(verdict) == pytest.approx(apart, abs=1.01e-4)  # three roundings
    assert (tmp_path / "safl_1_20" / "summary.json").exists()
    assert (tmp_path / "fedadam" / "summary.json").exists()

    shown = pages.shown_with("FedAdam", "README.md")
    assert shown[0] == head
    pages.same_tables(shown[1:3], [sketched, plain])
    # Of another machine one accuracy may be lower, and then the sign is another.
    assert DIFFERENCE.sub("", verdict) == DIFFERENCE.sub("", shown[-1])
    assert abs(difference(verdict) - difference(shown[-1])) < 0.03
