"""User code by file: a config can name a part as FILE.py:NAME.

NAME is an algorithm, a model or data in a Python file, in any folder. A file is read
once per process, and a run only resumes with the file that it started with.

>>> named("own/method.py:mine"), named("safl")
(True, False)
"""

import functools
import importlib.util
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from fl_sketch.core import files, validate

SHAPE = "FILE.py:NAME"  # as users are told
FORM = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")


def named(value: Any) -> bool:
    """Returns whether the `value` of a config's key is FILE.py:NAME."""
    return isinstance(value, str) and FORM.fullmatch(value) is not None


def load(value: str) -> Any:
    """Returns what FILE.py:NAME names, in the current folder or another one."""
    path, name = _parted(value)
    module = _module(path)
    if not hasattr(module, name):
        public = [key for key in vars(module) if not key.startswith("_")]
        msg = f"Expected {path} to have a {name}.{validate.nearest(name, public)}"
        raise ValueError(msg)
    return getattr(module, name)


def digests(values: Iterable[Any]) -> dict[str, str]:
    """Returns the SHA-256 of each file that values, or lists of values, name."""
    lists = (v if isinstance(v, list | tuple) else [v] for v in values)
    names = [value for values in lists for value in values if named(value)]
    return {value: files.digest(_parted(value)[0]) for value in names}


def _parted(value: str) -> tuple[pathlib.Path, str]:
    match = FORM.fullmatch(value)
    if not match:
        msg = f"Expected FILE.py:NAME, got {value!r}."
        raise ValueError(msg)
    path = pathlib.Path(match["file"]).expanduser().absolute()
    if not path.is_file():
        msg = f"Expected the file of {value}, got no file {path}."
        raise FileNotFoundError(msg)
    return path, match["name"]


@functools.cache
def _module(path: pathlib.Path) -> Any:
    """Returns the module of a file, run once."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader, path  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the file does
        msg = f"Expected {path} to run, got {type(error).__name__}: {error}"
        raise ValueError(" ".join(msg.split())) from error
    return module
