"""A notebook installs the project around the jax and the plugin that are there."""

import importlib.metadata
import json
import pathlib
import runpy
import subprocess

import pytest

pytestmark = pytest.mark.fast

ROOT = pathlib.Path(__file__).parents[1]
SETUP = runpy.run_path(str(ROOT / "notebooks" / "setup.py"))
plan = SETUP["plan"]


@pytest.mark.parametrize(
    ("installed", "wanted", "kept"),
    [
        ({"numpy": "2.4"}, [], []),
        ({"jax": "0.10.2"}, [], ["jax==0.10.2"]),
        (
            {"jax": "0.10.10", "jaxlib": "0.10.10", "flax": "0.12", "libtpu": "0.0.60"},
            [],
            ["jax==0.10.10", "jaxlib==0.10.10", "libtpu==0.0.60"],
        ),
        (
            {"jax": "0.11.0", "jax-cuda13-plugin": "0.11.0", "jax-cuda13-pjrt": "0.11"},
            [],
            ["jax==0.11.0", "jax-cuda13-plugin==0.11.0", "jax-cuda13-pjrt==0.11"],
        ),
        ({"jax": "0.9.2"}, ["--upgrade", "jax>=0.10.2"], []),
        (
            {"jax": "0.9.2", "jax-cuda12-plugin": "0.9.2"},
            ["--upgrade", "jax[cuda12]>=0.10.2"],
            [],
        ),
        (
            {"jax": "0.9.0.dev1", "libtpu": "0.0.30"},
            ["--upgrade", "jax[tpu]>=0.10.2"],
            [],
        ),
    ],
)
def test_jax_and_its_plugin_stay_or_are_replaced_together(installed, wanted, kept):
    assert plan(installed, "0.10.2")[:2] == (wanted, kept)


def pip_of(monkeypatch, installed):
    """Returns (arguments of pip, constraints that it read) of an installation."""
    seen = []

    def fake(words, check):
        assert check
        constraints = words[words.index("--constraint") + 1]
        seen.append((words, pathlib.Path(constraints).read_text().split()))

    class One:
        def __init__(self, name, version):
            self.metadata, self.version = {"Name": name}, version

    def ones():
        return [One(*item) for item in installed.items()]

    monkeypatch.setattr(importlib.metadata, "distributions", ones)
    monkeypatch.setattr(subprocess, "run", fake)
    try:
        SETUP["install"](ROOT)
    finally:
        (one,) = seen
        seen[:] = one
    return seen


def test_a_new_jax_and_its_plugin_are_what_pip_must_keep(monkeypatch, capsys):
    installed = {"jax": "99.0", "jax_cuda12_plugin": "99.0"}
    words, kept = pip_of(monkeypatch, installed)
    assert kept == ["jax==99.0", "jax-cuda12-plugin==99.0"]
    assert words[-2:] == ["--editable", str(ROOT)] and "--upgrade" not in words
    said = "jax 99.0 and its plugin for cuda12 stay as they are.\n"
    assert capsys.readouterr().out == said


def test_all_notebooks_begin_with_the_same_cell():
    cells = {
        "".join(
            next(
                cell["source"]
                for cell in json.loads(path.read_text())["cells"]
                if cell["cell_type"] == "code"
            )
        )
        for path in (ROOT / "notebooks").glob("*.ipynb")
    }
    (cell,) = cells
    assert '"notebooks/setup.py"' in cell
