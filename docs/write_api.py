"""Writes the API reference, docs/api.md, from the source of fl_sketch.

    python docs/write_api.py

It lists the commands, the names that each package exports, and those of some modules
that users import directly. A name has its signature and the first paragraph of its
docstring, and a class its attributes, properties and methods.
"""

import ast
import pathlib
import re
import textwrap
from collections.abc import Iterator

from launch.__main__ import listed as commands

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / "docs/api.md"
MODULES = (  # those that the pages import
    "algorithms.catalog",
    "core.protocols",
    "core.trees",
    "data.datasets",
    "engine.costs",
    "privacy.accounting",
    "privacy.clipping",
    "privacy.mechanism",
    "sketch.compressors",
    "sweep.comparison",
    "transforms.local",
    "workdir.rows",
)
PACKAGES = ("models.huggingface",)  # those within packages
HEAD = """# API reference

`python docs/write_api.py` writes this page. It has the commands, and the public names
of each package and of the modules that the other pages import, with the first paragraph
of their docstrings. `make docs` builds pages with all arguments.
"""


def file_of(module: str) -> pathlib.Path:
    """Returns the file of a module or of a package."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def exports(package: str) -> Iterator[tuple[str, str, str]]:
    """Yields (name, module that defines it, its name there) of a package's exports."""
    for node in ast.parse(file_of(package).read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if alias.asname:
                    yield alias.asname, node.module, alias.name


def definition(module: str, name: str) -> ast.AST | None:
    """Returns the node that defines a name in a module, also if it is imported there.

    It is None for a module, and for a name that is assigned.
    """
    path = file_of(module)
    if not path.exists():
        return None
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module not in (None, module):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return definition(node.module, alias.name)
    return None


def signature(node: ast.AST) -> str:
    """Returns the arguments of a function or a class as they stand in the source."""
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return arguments(node) + returns
    inits = [part for part in node.body if getattr(part, "name", "") == "__init__"]
    if inits:
        return arguments(inits[0])
    fields = [
        ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)
    ]
    return f"({', '.join(fields)})" if fields else ""


def arguments(node: ast.FunctionDef) -> str:
    """Returns the arguments of a function, or of a method without `self`."""
    return re.sub(r"^\(self(?:, )?", "(", f"({ast.unparse(node.args)})")


def entry(name: str, node: ast.AST) -> str:
    """Returns the lines of one name."""
    first = (ast.get_docstring(node) or "").split("\n\n")[0]
    kind = "class " if isinstance(node, ast.ClassDef) else ""
    parts = [f"`{kind}{name}{signature(node)}`\n", f"{filled(first)}\n"]
    if isinstance(node, ast.ClassDef):
        listed = [*attributes(node), *members(node)]
        parts += ["\n".join(listed) + "\n"] if listed else []
    return "\n".join(parts)


def filled(text: str, **options: str) -> str:
    """Returns a paragraph in lines."""
    return textwrap.fill(" ".join(text.split()), 120, break_on_hyphens=False, **options)


def attributes(node: ast.ClassDef) -> list[str]:
    """Returns the items of the attributes in a class's docstring."""
    text = ast.get_docstring(node) or ""
    _, found, after = text.partition("Attributes:\n")
    if not found:
        return []
    block = textwrap.dedent(after.split("\n\n")[0])
    items = re.findall(r"^(\w+): (.*(?:\n[ ]+.*)*)", block, re.MULTILINE)
    return [
        filled(f"- `{name}`: {what}", subsequent_indent="  ") for name, what in items
    ]


def members(node: ast.ClassDef) -> list[str]:
    """Returns the items of a class's public properties and methods."""
    listed = []
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
            is_property = any(
                ast.unparse(one) == "property" for one in part.decorator_list
            )
            call = "" if is_property else signature(part)
            first = (ast.get_docstring(part) or "").split("\n\n")[0]
            listed.append(
                filled(f"- `{part.name}{call}`: {first}", subsequent_indent="  ")
            )
    return listed


def section(module: str, nodes: list[tuple[str, ast.AST]]) -> str:
    """Returns the part of the page that one package or module has."""
    first = ast.get_docstring(ast.parse(file_of(module).read_text())) or ""
    words = filled(first.split("\n\n")[0])
    parts = [f"## {module}\n", f"{words}\n", *(entry(*each) for each in nodes)]
    return "\n".join(parts)


def of_package(package: str) -> list[tuple[str, ast.AST]]:
    """Returns the functions and classes that a package exports."""
    found = [(name, definition(*place)) for name, *place in exports(package)]
    return [(name, node) for name, node in found if node]


def of_module(module: str) -> list[tuple[str, ast.AST]]:
    """Returns the public functions and classes that a module defines or hands on."""
    kinds = ast.FunctionDef | ast.ClassDef
    nodes = ast.parse(file_of(module).read_text()).body
    own = [
        (node.name, node)
        for node in nodes
        if isinstance(node, kinds) and not node.name.startswith("_")
    ]
    return own + of_package(module)


def page() -> str:
    """Returns the whole page."""
    rooms = sorted((ROOT / "fl_sketch").glob("*/__init__.py"))
    names = {f"fl_sketch.{path.parent.name}": of_package for path in rooms}
    names |= {f"fl_sketch.{package}": of_package for package in PACKAGES}
    names |= {f"fl_sketch.{module}": of_module for module in MODULES}
    found = {name: names[name](name) for name in sorted(names)}
    parts = [section(name, nodes) for name, nodes in found.items() if nodes]
    listed = ["## Commands\n\n```text", *commands(), "```\n"]
    return "\n".join([HEAD, *listed, *parts])


if __name__ == "__main__":
    PAGE.write_text(page())
