"""Config files: whether one is named, and where it fails."""

import ast
import pathlib
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from fl_sketch.core import untrusted_files, validate
from launch import clone


def require(argv: Sequence[str]) -> None:
    """Raises unless the --config among `argv` is a Python file with get_config.

    What follows a colon is an argument of that function.
    """
    for argument in argv:
        found = re.match(r"--?config=([^:]*)(:.+)?", argument)
        if not found:
            continue
        file = pathlib.Path(found[1])
        if not file.is_file() or file.suffix != ".py":
            ours = (
                path.relative_to(clone.ROOT) for path in clone.ROOT.glob("configs/*.py")
            )
            near = validate.nearest(found[1], [*map(str, ours)])
            none = validate.absent(file)
            msg = f"Expected config to name a Python file, got config={found[1]}{none}."
            msg += near
            raise ValueError(msg)
        with untrusted_files.reading(file, "to be a Python file"):
            source = ast.parse(file.read_bytes(), file.name)
        if "get_config" not in _names(source):
            msg = f"Expected a file with get_config, got config={file}"
            raise ValueError(msg + ": see launch.compare.")
        if found[2] and not _takes_argument(source):
            msg = f"Expected config={found[1]} without an argument, got {found[2]!r}."
            raise ValueError(msg)


def _takes_argument(file: ast.Module) -> bool:
    """Returns whether the get_config of a file may take an argument."""
    for node in file.body:
        if isinstance(node, ast.FunctionDef) and node.name == "get_config":
            return bool(node.args.posonlyargs or node.args.args or node.args.vararg)
    return True


def _names(file: ast.Module) -> set[str]:
    """Returns the names that a Python file gives to something at its outer level."""
    found = {node.name for node in file.body if isinstance(node, ast.FunctionDef)}
    for node in file.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return found


def require_config(value: Any) -> None:
    """Raises for a `value` that a get_config returned, if that is no config."""
    if value is None:
        return
    from ml_collections import ConfigDict  # commands without configs do without it

    if not isinstance(value, ConfigDict | str):
        kind = type(value).__name__
        msg = f"Expected get_config to return a ConfigDict, got {kind}: see configs/."
        raise ValueError(msg)


def placed(error: BaseException) -> str:
    """Returns the line of somebody's own file in which an `error` arose, or nothing.

    >>> placed(ValueError("of nobody"))
    ''
    """
    ours = (str(clone.ROOT / "launch"), str(clone.ROOT / "fl_sketch"), "<", sys.prefix)
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith((*ours, sys.base_prefix))
        and "site-packages" not in frame.filename
    ]
    if not own or own[-1].filename.startswith(str(clone.ROOT / "configs")):
        return ""
    kind = type(error).__name__
    return f"{own[-1].filename}, line {own[-1].lineno}: {kind}: "
