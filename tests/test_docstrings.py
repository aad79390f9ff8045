"""Public names have a docstring, and its entries name what exists."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "fl_sketch").rglob("*.py"))
pytestmark = pytest.mark.fast
SECTION = re.compile(r"^( *)(?:Args|Attributes):\n((?:\1 +.*\n|\n)+)", re.MULTILINE)


def public(body):
    """Yields the public functions and classes of a body, and what is in the classes."""
    for node in body:
        if getattr(node, "name", "_").startswith("_"):
            continue
        yield node
        if isinstance(node, ast.ClassDef):
            yield from public(node.body)


def existing(node):
    """Returns the names of a function's arguments, or of a class's fields."""
    if isinstance(node, ast.ClassDef):
        fields = {
            part.target.id for part in node.body if isinstance(part, ast.AnnAssign)
        }
        inits = [part for part in node.body if getattr(part, "name", "") == "__init__"]
        return fields.union(*map(existing, inits))
    given = node.args
    arguments = given.posonlyargs + given.args + given.kwonlyargs
    return {a.arg for a in [*arguments, given.vararg, given.kwarg] if a}


def described(node):
    """Returns the names that the Args and Attributes of a docstring describe."""
    found = set()
    for section in SECTION.finditer((ast.get_docstring(node) or "") + "\n"):
        lines = section[2].splitlines()
        indent = min(len(li) - len(li.lstrip()) for li in lines if li.strip())
        entry = re.compile(rf"^ {{{indent}}}\**(\w+(?:, \w+)*):")
        for line in lines:
            if match := entry.match(line):
                found |= set(match[1].split(", "))
    return found


@pytest.mark.parametrize("path", PACKAGE, ids=lambda p: str(p.relative_to(ROOT)))
def test_public_names_are_documented_and_entries_exist(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    for node in public(tree.body):
        assert ast.get_docstring(node), node.name
        strange = described(node) - existing(node)
        assert not strange, f"{node.name} describes {strange}, which it does not have"


@pytest.mark.parametrize("path", PACKAGE, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_bar_of_a_formula_is_outside_of_backticks(path):
    """Sphinx reads such a pair as the name of a substitution."""
    tree = ast.parse(path.read_text())
    for node in (tree, *public(tree.body)):
        words = ast.get_docstring(node).split("\n\n>>>")[0]
        words = re.sub(r"::\n(\n| +.*)+|`[^`]*`", "", words)
        assert not re.search(r"\|\w", words), words


def test_an_entry_of_an_argument_that_is_gone_is_found():
    source = """
def f(rate, *parts, **names):
    '''Returns the size.

    Args:
      rate: the rate,
        which is: long.
      step: the step.
      **names: the names.
    '''
"""
    node = ast.parse(source).body[0]
    assert described(node) - existing(node) == {"step"}
