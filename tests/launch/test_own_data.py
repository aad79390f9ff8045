"""Arrays of one's own, as the page of data has them: written, trained on, shared."""

import json

import pytest

from tests import pages
from tests.launching import launch_python

pytestmark = pytest.mark.slow
PAGE = "docs/data.md"


def test_the_pages_own_arrays_train_with_a_client_for_each_owner(tmp_path):
    (block,) = [b for b in pages.blocks("python", PAGE) if "own.npz" in b]
    (text,) = [b for b in pages.blocks("sh", PAGE) if "npz/own" in b]
    pages.run("-c", block.replace("/tmp", str(tmp_path)))
    words = text.replace("\\\n", " ").replace("/tmp", str(tmp_path)).split()[1:]
    said = launch_python(*words, "--config.rounds=20")
    assert said.returncode == 0, said.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["clients"] == 3
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["data"]["clients"] == 3
