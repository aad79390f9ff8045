"""python -m launch.plot, as a user starts it."""

import pytest

from fl_sketch.core import files
from tests.launching import launch

pytestmark = pytest.mark.slow


def test_flags_reach_the_picture_and_the_names_are_printed(tmp_path):
    names = ("round", "test_accuracy", "bytes_up_total", "bytes_down_total")
    files.write_rows(tmp_path / "metrics.csv", [dict.fromkeys(names, 1)])
    out = f"{tmp_path}/p.svg"
    flags = (f"--workdir={tmp_path}", f"--out={out}", "--x=up", "--title=Digits")
    labels = f"--label={tmp_path.name}=SAFL, 1/100"
    done = launch("launch.plot", *flags, labels)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == tmp_path.name and lines[-1] == f"wrote {out}"
    done = launch("launch.plot", *flags, "--only=nothing")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
