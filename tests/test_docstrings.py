"""What is public says what goes in: arguments of functions, fields of classes."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "fl_sketch").rglob("*.py"))
FILES = [*PACKAGE, *sorted((ROOT / "launch").rglob("*.py"))]
pytestmark = pytest.mark.fast

# An entry is a noun phrase: "the number of ...", not "how many ...".
NO_NOUN = re.compile(
    r"^ +\**\w+(, \w+)*: (how|that|whose|makes|made|where|of|which)\b.*", re.MULTILINE
)


def public(body):
    """Yields the public functions and classes of a body, and what is in the classes."""
    for node in body:
        name = getattr(node, "name", "_")
        if name.startswith("_") and name != "__init__":
            continue
        yield node
        if isinstance(node, ast.ClassDef):
            yield from public(node.body)


def named(node):
    """Returns the names that a docstring must have."""
    if isinstance(node, ast.ClassDef):
        return [part.target.id for part in node.body if isinstance(part, ast.AnnAssign)]
    given = node.args
    arguments = given.posonlyargs + given.args + given.kwonlyargs
    arguments += [a for a in (given.vararg, given.kwarg) if a]
    return [a.arg for a in arguments if a.arg not in ("self", "cls")]


def unsaid(node):
    """Returns the names with neither an entry nor a place between backticks."""
    said = ast.get_docstring(node)
    found = re.findall(r"^ +\**(\w+):|`\**(\w+)`", said, re.MULTILINE)
    return [name for name in named(node) if name not in sum(found, ())]


@pytest.mark.parametrize("path", PACKAGE, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_argument_and_field_is_described(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    for node in public(tree.body):
        assert ast.get_docstring(node), node.name
        assert not unsaid(node), f"{node.name} says nothing of {unsaid(node)}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_entry_begins_with_a_noun(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found = NO_NOUN.search(ast.get_docstring(node) or "")
            assert not found, f"{node.name}: {found[0].strip()}"


@pytest.mark.parametrize("path", PACKAGE, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_bar_of_a_formula_is_outside_of_backticks(path):
    """The site reads such a pair as the name of something to put there."""
    tree = ast.parse(path.read_text())
    for node in (tree, *public(tree.body)):
        words = ast.get_docstring(node).split("\n\n>>>")[0]
        words = re.sub(r"::\n(\n| +.*)+|`[^`]*`", "", words)
        assert not re.search(r"\|\w", words), words


def test_a_word_in_a_sentence_describes_no_argument():
    source = """
def f(rate, /, size, *parts, step, **names):
    '''Returns the size at a rate, with `parts`.

    Args:
      step: how many there are.
      **names: the names.
    '''
"""
    node = ast.parse(source).body[0]
    assert unsaid(node) == ["rate", "size"]
    assert NO_NOUN.search(ast.get_docstring(node))
