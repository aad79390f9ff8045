"""What is public says what goes in: arguments of functions, fields of classes."""

import ast
import pathlib
import re

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "fl_sketch"
FILES = sorted(PACKAGE.rglob("*.py"))
pytestmark = pytest.mark.fast


def public(body):
    """Yields the public functions and classes of a body, and what is in the classes."""
    for node in body:
        if getattr(node, "name", "_").startswith("_"):
            continue
        yield node
        if isinstance(node, ast.ClassDef):
            yield from public(node.body)


def named(node):
    """Returns the names that a docstring must have."""
    if isinstance(node, ast.ClassDef):
        return [part.target.id for part in node.body if isinstance(part, ast.AnnAssign)]
    arguments = node.args.args + node.args.kwonlyargs
    return [a.arg for a in arguments if a.arg not in ("self", "cls")]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_every_argument_and_field_is_described(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    for node in public(tree.body):
        said = ast.get_docstring(node)
        assert said, node.name
        missing = [x for x in named(node) if not re.search(rf"\b{x}s?\b", said)]
        assert not missing, f"{node.name} says nothing of {missing}"
