"""Prints values in one line, with arrays as types and shapes."""

import functools
import inspect
import math
from collections.abc import Collection, Mapping
from typing import Any

import jax

MOST = 4  # arrays of a tree that are shown one by one
LONGEST = 60  # characters of a text


def fields(self: Any) -> str:
    """Returns the line of a NamedTuple, for its class to have as `__repr__`."""
    parts = (f"{name}={short(part)}" for name, part in self._asdict().items())
    return f"{type(self).__name__}({', '.join(parts)})"


def short(value: Any) -> str:
    """Returns a value in one line.

    An array is shown as its type and shape, and a function as the public function that
    made it. A record of functions is shown as the first of them.

    >>> import numpy as np
    >>> short({"w": np.zeros((3, 4)), "b": np.zeros(3)})
    '{w: float64[3,4], b: float64[3]}'
    >>> short([np.zeros(2)] * 7)
    '7 arrays of 14 numbers'
    """
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if isinstance(value, tuple) and value and _is_function(value[0]):
        value = value[0]
    if _is_function(value):
        while isinstance(value, functools.partial):
            value = value.func
        name = getattr(value, "__qualname__", type(value).__name__)
        return name.partition(".<locals>")[0]
    if not isinstance(value, Mapping | list | tuple):
        return cut(repr(value))
    leaves = jax.tree.leaves(value)
    if len(leaves) > MOST:
        total = sum(math.prod(getattr(leaf, "shape", ())) for leaf in leaves)
        return f"{len(leaves)} arrays of {total} numbers"
    if hasattr(value, "_fields"):
        return fields(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {short(value[name])}' for name in value)}}}"
    parts = ", ".join(map(short, value))
    return f"[{parts}]" if isinstance(value, list) else f"({parts})"


def cut(text: str) -> str:
    """Returns a text in one line of at most `LONGEST` characters."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def listed(names: Collection[str], most: int) -> str:
    """Returns names, the first `most` of them and the number of the others."""
    more = f" and {len(names) - most} more" * (len(names) > most)
    return ", ".join([*names][:most]) + more


def _is_function(value: Any) -> bool:
    return callable(value) and not inspect.isclass(value)


def sized(count: float) -> str:
    """Returns a `count` of bytes in four digits, with its unit.

    >>> sized(22_080_000), sized(9.9e9), sized(1.2345e10), sized(1.2345e14)
    ('22.08 MB', '9900 MB', '12.35 GB', '123.5 TB')
    """
    unit, size = ("MB", 1e6) if count < 1e10 else ("GB", 1e9)
    if count >= 1e13:
        unit, size = "TB", 1e12
    return f"{count / size:.4g} {unit}"


def megabytes(count: float) -> str:
    """Returns a `count` of bytes for a column of MB; a long one has its own unit.

    >>> megabytes(11_040_000), megabytes(99_999_000_000), megabytes(1e11)
    ('11.04', '99999.00', '100 GB')
    """
    return f"{count / 1e6:.2f}" if count < 1e11 else sized(count)
