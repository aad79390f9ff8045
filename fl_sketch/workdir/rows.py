"""Rows of metrics, and which of their columns a private run may publish.

In the folder of a private run, metrics.csv has those that depend on released models and
test data alone. All others, as the losses of clients or exact bytes, which reveal who
took part, are in simulator.csv.
"""

import contextlib
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from fl_sketch.core import files

SIMULATOR = "simulator"  # begins the names of what a private run must not publish
# What a private run may publish: what follows from released models and public data.
PRIVATE_OK = ("round", "rounds", "epsilon", "delta", "randomness", "threshold")
PRIVATE_OK_STARTS = ("test_", "validation_")


def may_be_published(name: str) -> bool:
    """Returns whether a private run may publish a column: one that is known to be safe.

    >>> may_be_published("test_loss"), may_be_published("train_loss")
    (True, False)
    """
    return name in PRIVATE_OK or name.startswith(PRIVATE_OK_STARTS)


def published(row: Mapping[str, Any], also: Collection[str] = ()) -> dict[str, Any]:
    """Returns the columns that a private run may publish, and those of `also`."""
    return {k: v for k, v in row.items() if may_be_published(k) or k in also}


def place(folder: pathlib.Path, private: bool) -> pathlib.Path:
    """Returns the folder of tables about clients: in a private run, their own."""
    if not private:
        return folder
    (folder / SIMULATOR).mkdir(exist_ok=True)
    return folder / SIMULATOR


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the whole rows of a table, with the columns that simulator.csv has."""
    tables = [path, path.parent / f"{SIMULATOR}.csv"]
    found = [files.read_rows(one, whole=True) for one in tables if one.exists()]
    whole = []
    for parts in zip(*found, strict=False):
        torn = any(None in part or None in part.values() for part in parts)
        if torn or len({part.get("round") for part in parts}) > 1:
            break
        whole.append({k: v for part in parts for k, v in part.items()})
    return whole


def values(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row of a csv file with its numbers and texts.

    >>> values({"loss": "0.5", "round": "3", "flag": "True", "word": "a", "none": ""})
    {'loss': 0.5, 'round': 3, 'flag': True, 'word': 'a', 'none': None}
    """
    return {name: value_of(row[name]) for name in row}


def value_of(cell: Any) -> Any:
    """Returns the value of a cell of a csv file: None, a number or a text."""
    if not isinstance(cell, str):
        return cell
    for kind in (int, float):  # floats are also nan and inf
        with contextlib.suppress(ValueError):
            return kind(cell)
    return {"": None, "True": True, "False": False}.get(cell, cell)
