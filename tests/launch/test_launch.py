"""The launchers run, say what they found, and refuse what they cannot do."""

import pathlib

import pytest

from launch import __main__ as index
from tests import pages
from tests.launching import launch

pytestmark = pytest.mark.slow


def test_the_index_has_every_command_once():
    done = launch("launch")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    listed = [line.split()[2] for line in lines if "python -m" in line]
    files = pathlib.Path(index.__file__).parent.glob("*.py")
    mains = {f"launch.{f.stem}" for f in files if "command.run(" in f.read_text()}
    assert sorted(listed) == sorted(mains)
    assert all(len(line) <= 120 for line in lines)
    assert done.stdout in pages.PAGES["docs/api.md"]
