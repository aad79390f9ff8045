"""How Sphinx makes the site of these pages: `make docs`."""

import ast
import importlib
import inspect
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from fl_sketch import __version__  # noqa: E402

project = "fl_sketch"
author = "the authors of fl_sketch"
project_copyright = "the authors of fl_sketch; Apache License 2.0"
version = release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
root_doc = "index"
html_theme = "furo"
html_title = "fl_sketch"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_copy_source = False
default_role = "code"  # docstrings have names between single backticks
add_module_names = False
maximum_signature_line_length = 72
autodoc_mock_imports = ["torch", "pfl", "nvflare"]  # extras, not installed here
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # the signature has them
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # pages of results begin their parts as they like
copybutton_exclude = ".linenos, .gp"

ROOMS = sorted(path.parent for path in (ROOT / "fl_sketch").glob("*/__init__.py"))


def exported(room: pathlib.Path) -> dict[str, str]:
    """Returns what a package's own file hands on: name -> module that has it."""
    tree = ast.parse((room / "__init__.py").read_text())
    return {
        alias.asname: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }


def entry(package: str, name: str, module: str) -> list[str]:
    """Returns the lines that document one name of a package under that package.

    What is neither a class nor a function has its words in the module that sets it.
    """
    thing = getattr(importlib.import_module(package), name)
    if inspect.ismodule(thing):
        return []
    kind = "class" if inspect.isclass(thing) else "function"
    if not callable(thing):
        kind, package = "data", module
    options = ["   :members:"] if kind == "class" else []
    if not module.startswith(package):  # another package has it as well
        options += ["   :no-index:"]
    return [f".. auto{kind}:: {package}.{name}", *options, ""]


def heading(text: str, line: str) -> list[str]:
    """Returns a heading of reStructuredText."""
    return [text, line * len(text), ""]


def module_lines(name: str, known: list[str]) -> list[str]:
    """Returns the lines that document a module, but for what its package has."""
    options = ["   :members:"]
    if known:
        options.append(f"   :exclude-members: {', '.join(known)}")
    if name.rpartition(".")[2] in known:  # a function has the module's whole name
        options.append("   :no-index:")
    return [*heading(name, "-"), f".. automodule:: {name}", *options, ""]


def page(room: pathlib.Path) -> str:
    """Returns the page of a package: what it exports, then its modules."""
    package, known = f"fl_sketch.{room.name}", exported(room)
    lines = [*heading(package, "="), f".. automodule:: {package}", ""]
    for name, module in known.items():
        lines += entry(package, name, module)
    for path in sorted(room.rglob("*.py")):
        if path.stem != "__init__":
            parts = path.relative_to(room).with_suffix("").parts
            module = ".".join((package, *parts))
            lines += module_lines(module, [n for n, m in known.items() if m == module])
    return "\n".join(lines)


def write(folder: pathlib.Path, pages: dict[pathlib.Path, str]) -> None:
    """Writes all pages of a folder that git does not keep.

    What is as it was keeps its time, so that Sphinx does not read it again.
    """
    for path in set(folder.glob("*")) - set(pages):  # of a package that is gone
        path.unlink()
    for path, text in pages.items():
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def write_api(_app) -> None:
    """Writes a page for each package below docs/api."""
    folder = ROOT / "docs/api"
    pages = {folder / f"{room.name}.rst": page(room) for room in ROOMS}
    write(folder, pages)


def write_results(_app) -> None:
    """Writes the pages of results/ below docs/results, with links that fit there.

    NAME/README.md is NAME.md, which has NAME/details.md below it as NAME_details.md.
    Pages beside the folders keep their names.
    """
    folder, results, pages = ROOT / "docs/results", ROOT / "results", {}
    inner = [*results.glob("*/README.md"), *results.glob("*/details.md")]
    for path in sorted([*results.glob("*.md"), *inner]):

        def moved(found: re.Match, path: pathlib.Path = path) -> str:
            target, mark, anchor = found[1].partition("#")
            place = (path.parent / target).resolve()
            name = result_page(place) or os.path.relpath(place, folder)
            return f"]({name}{mark}{anchor})"

        text = re.sub(r"\]\((?!http|#)([^)]+)\)", moved, path.read_text())
        pages[folder / result_page(path)] = text
    names = [path.stem for path in pages if not path.stem.endswith("_details")]
    names.remove("index")
    for path in [path for path in pages if path.stem.endswith("_details")]:
        page = folder / f"{path.stem.removesuffix('_details')}.md"
        pages[page] += contents(path.stem)
    pages[folder / "index.md"] += contents(*names)
    write(folder, pages)


def result_page(path: pathlib.Path) -> str:
    """Returns the name below docs/results of a page of results/; empty: it is none."""
    if path.parent == ROOT / "results" and path.suffix == ".md":
        return path.name.replace("README", "index")
    ending = {"README.md": ".md", "details.md": "_details.md"}.get(path.name)
    inner = path.parent.parent == ROOT / "results"
    return f"{path.parent.name}{ending}" if inner and ending else ""


def contents(*names: str) -> str:
    """Returns a table of contents that the page itself does not show."""
    return "\n".join(["", "```{toctree}", ":hidden:", "", *names, "```", ""])


def lead_to_results(_app, name: str, text: list[str]) -> None:
    """Leads links to files of results/ to the pages that are made of them here."""

    def moved(found: re.Match) -> str:
        page = result_page(ROOT / "results" / found[1])
        return f"(results/{page}" if page else found[0]

    if not name.startswith("results/"):
        text[0] = re.sub(r"\(\.\./results/([\w/]+\.md)", moved, text[0])


def leave_out(_app, _what, _name, thing, skip, _options) -> bool:
    """Leaves out the fields of named tuples, which their classes describe."""
    return skip or type(thing).__name__ == "_tuplegetter"


def setup(app) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-skip-member", leave_out)
    app.connect("builder-inited", write_api)
    app.connect("builder-inited", write_results)
    app.connect("source-read", lead_to_results)
