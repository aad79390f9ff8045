"""Notebooks run from top to bottom, and carry small outputs of such a run."""

import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

from tests.launching import ENVIRONMENT

pytestmark = pytest.mark.slow

FOLDER = pathlib.Path(__file__).parents[1] / "notebooks"
LARGEST = 100_000  # bytes, pictures included
OF_FILES = ("05_read_the_results",)  # which print what is in results/, and no times


def kinds(notebook):
    """Returns what every cell shows: texts and pictures, not their contents."""
    return [
        {mime for out in cell.get("outputs", ()) for mime in out.get("data", ("text",))}
        for cell in notebook.cells
    ]


def texts(notebook):
    """Returns what every cell prints."""
    return [[out.get("text") for out in c.get("outputs", ())] for c in notebook.cells]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda p: p.stem)
@pytest.mark.filterwarnings("ignore:.*(Proactor|zmq|TCP)")
def test_notebooks_run_and_show_what_they_showed(path):
    kept = nbformat.read(path, as_version=4)
    assert path.stat().st_size < LARGEST
    fresh = nbformat.from_dict(kept)
    for cell in fresh.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell.outputs = []
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(fresh, timeout=600, resources=resources).execute(env=ENVIRONMENT)
    assert kinds(fresh) == kinds(kept)
    assert any(kinds(kept))
    assert path.stem not in OF_FILES or texts(fresh) == texts(kept)
