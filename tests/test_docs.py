"""Every Python block of the documentation runs as it stands."""

import re
import subprocess
import sys

import pytest

from tests.launching import ENVIRONMENT, ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCKS = {
    f"{page.relative_to(ROOT / 'docs')}, {number}": block
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    )
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_run(name):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[name]],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


def test_an_own_algorithm_takes_thirty_lines():
    lines = BLOCKS["own_algorithm.md, 0"].splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 30


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), (page, target)
