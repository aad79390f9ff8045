"""Parts of one's own, by the file that they stand in.

Where a config names an algorithm, a model or data, it may also say FILE.py:NAME: what
has that name in a Python file, in any folder. The file is read once in a process, and a
run goes on only with the file that it began with.

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
    """Returns what a file holds by a name.

    Args:
      value: a value for which `named` is true. The file's path is absolute, begins with
        a ~, or is meant from the current folder.

    Raises:
      FileNotFoundError: for a file that is not there.
      ValueError: in one line, for a file that cannot be run, or holds no such name.
    """
    path, name = _parted(value)
    module = _module(path)
    if not hasattr(module, name):
        public = [one for one in vars(module) if not one.startswith("_")]
        msg = f"Expected {path} to have a {name}.{validate.nearest(name, public)}"
        raise ValueError(msg)
    return getattr(module, name)


def digests(values: Iterable[Any]) -> dict[str, str]:
    """Returns the SHA-256 of each file that some values of a config name, by its value.

    Args:
      values: the values of a config, or lists of them.

    Raises:
      FileNotFoundError: for a file that is not there.
    """
    single = [
        one
        for value in values
        for one in (value if isinstance(value, list | tuple) else [value])
    ]
    return {value: files.digest(_parted(value)[0]) for value in single if named(value)}


def _parted(value: str) -> tuple[pathlib.Path, str]:
    found = FORM.fullmatch(value)
    if not found:
        msg = f"Expected FILE.py:NAME, got {value!r}."
        raise ValueError(msg)
    path = pathlib.Path(found["file"]).expanduser().absolute()
    if not path.is_file():
        msg = f"Expected the file of {value}, and there is no {path}."
        raise FileNotFoundError(msg)
    return path, found["name"]


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
