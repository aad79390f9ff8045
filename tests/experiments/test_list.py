"""The list of studies is read out of their files."""

import subprocess
import sys

from tests.launching import ROOT


def test_the_list_has_every_study_and_every_page_and_imports_nothing_heavy():
    code = "import runpy, sys; runpy.run_module('experiments', run_name='__main__'); "
    code += "assert 'jax' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    listed = {line.split()[0] for line in done.stdout.splitlines() if line}
    studies = {p.stem for p in ROOT.glob("experiments/[a-z]*.py") if p.stem != "toy"}
    assert studies <= listed
    pages = ROOT.glob("results/*/README.md")
    assert {p.parent.name for p in pages if "```bash" in p.read_text()} <= listed
