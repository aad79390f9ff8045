"""A file imports only from lower layers (and from its own folder)."""

import ast
import pathlib
import re

import pytest

from fl_sketch.algorithms import catalog

pytestmark = pytest.mark.fast

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "fl_sketch"

# From the ground up; a name is a folder of fl_sketch. Rooms of one floor do not import
# each other.
LAYERS = [
    ["core"],
    ["sketch", "theory", "data", "models"],
    ["channels", "transforms"],
    ["privacy"],
    ["algorithms"],
    ["engine", "workdir"],
    ["config"],
    ["run"],
    ["audit", "network", "sweep"],
]
UP = ("launch", "tests", "configs", "experiments", "benchmarks")
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}
FILES = sorted(PACKAGE.rglob("*.py"))


def place(path):
    """Returns the name of the file or folder directly below fl_sketch."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path):
    """Yields the parts below fl_sketch of every import of it, anywhere in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == "fl_sketch" and rest:
                yield rest
            assert first not in UP, f"{path} looks up"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path):
    if path == PACKAGE / "__init__.py":
        assert not list(imported(path))
        return
    own = place(path)
    assert own in HEIGHT, f"{own} has no layer yet: give it one in LAYERS"
    for rest in imported(path):
        if rest[0] != own:
            assert HEIGHT[rest[0]] < HEIGHT[own], f"{path} imports {'.'.join(rest)}"


def test_studies_are_imported_by_nothing():
    for path in [*(ROOT / "launch").glob("*.py"), *(ROOT / "configs").glob("*.py")]:
        assert not re.search(
            r"^ *(?:from|import) (?:experiments|benchmarks)\b", path.read_text(), re.M
        ), path


def test_only_the_catalogue_asks_for_an_algorithm_by_its_name():
    names = {*catalog.methods()}
    for path in FILES:
        if path == PACKAGE / "algorithms" / "catalog.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                inside = ast.walk(node)
                said = {n.value for n in inside if isinstance(n, ast.Constant)}
                assert not said & names, f"{path}:{node.lineno}"


def test_the_layer_test_sees_an_upward_import(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from fl_sketch.transforms import sketch\n")
    assert list(imported(bad)) == [["transforms", "sketch"]]
