"""Columns that a caller of `simulate` adds to rows, and rows read back from a file."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fl_sketch.core.protocols import Tree
from fl_sketch.data import Clients
from fl_sketch.engine.client_metrics import PerExample, columns_of
from fl_sketch.engine.loop import plain
from fl_sketch.engine.recorder import ABSENCES, Row
from fl_sketch.workdir.rows import is_column

RESERVED = ("round", "epsilon", "delta", "randomness", "rounds_per_second", *ABSENCES)
RESERVED_STARTS = ("train_", "bytes_", "clients_", "mechanism_")
LONGEST = 200  # characters of a text that `look` returns


def measuring(
    look: Callable[[Tree], Mapping[str, Any]],
    per_client: PerExample | None,
    clients: Clients,
) -> Callable[[Tree], Row]:
    """Returns `(params) -> columns` with all that is measured for a row, checked."""
    views = columns_of(per_client, clients) if per_client else None

    def measured(params):
        columns = look(jax.tree.map(jnp.copy, params))  # a caller may keep the copy
        _require_columns(columns)
        return {**columns, **(views(params) if views else {})}

    return measured


def _require_columns(columns: Any) -> None:
    """Raises unless `look` returned names and values that a csv file gives back."""
    names = [*columns] if isinstance(columns, Mapping) else columns
    if not isinstance(columns, Mapping) or any(map(_reserved, columns)):
        msg = (
            "Expected look to return a dictionary whose names are words without "
            "commas, and not those of other columns (round, epsilon, train_*, "
            f"bytes_*, mechanism_*), got {names!r}."
        )
        raise ValueError(msg)
    for name, value in columns.items():
        one = plain(value)
        text = isinstance(one, str) and one.isprintable() and len(one) <= LONGEST
        if not isinstance(one, int | float) and not (text and _read(one) == one):
            msg = (
                "Expected look to return numbers, and texts of one line of at most "
                f"{LONGEST} characters that are no numbers, got {name}={one!r}."
            )
            raise ValueError(" ".join(msg.split()))


def _reserved(name: Any) -> bool:
    return not is_column(name) or name in RESERVED or name.startswith(RESERVED_STARTS)


def values(row: Row) -> Row:
    """Returns a row of a csv file with its numbers and texts."""
    return {name: _read(row[name]) for name in row}


def _read(cell: Any) -> Any:
    """Returns the value of a cell of a csv file: None, a number or a text."""
    if not isinstance(cell, str):
        return cell
    for read in (int, float):  # floats are also nan and inf
        with contextlib.suppress(ValueError):
            return read(cell)
    return {"": None, "True": True, "False": False}.get(cell, cell)
