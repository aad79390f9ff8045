"""What is printed may go nowhere; what was asked for is done all the same."""

import subprocess
import sys

import pytest

from tests.launching import ENVIRONMENT, ROOT

RUN = ["--config=configs/default.py", "--config.rounds=4", "--config.eval_every=1"]


def in_bash(shell, *words):
    """Runs `python -m` with these words where `shell` has a place for it."""
    line = shell.format(" ".join((sys.executable, "-m", *words)))
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "shell",
    ["{} | head -n 1", "{} >&-", "{} >&- 2>&-", "{} > /dev/full", "{} 2>&1 | true"],
)
def test_a_run_goes_on_when_nobody_listens(tmp_path, shell):
    words = ("launch.train", *RUN, f"--workdir={tmp_path}/run")
    done = in_bash(shell, *words)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert len(rows) == 5 and (tmp_path / "run" / "summary.json").exists()


def test_help_and_lists_may_be_cut_short():
    done = in_bash("{} | head -n 1", "launch")
    assert done.returncode == 0 and not done.stderr
