"""Rows of metrics: which columns only a simulator may see, and which score counts.

In a private run, columns that depend on clients' data or on participation (exact bytes
reveal the number of clients) have names that say so, and are not published by accident.
All other columns depend only on released models and test data.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fl_sketch.core import validate
from fl_sketch.models.metrics import METRICS

MARK = "simulator_only_"  # before names of columns that a private run must not publish
HIDDEN = (
    "asked", "answered", "bytes_up", "bytes_down", "bytes_up_total",
    "bytes_down_total", "bytes_up_per_client_round", "bytes_down_per_client_round",
)  # fmt: skip
OF_CLIENTS = ("train_", "mechanism_", "clients_")  # of clients' data
REPORTED = ("test",)
CHOSEN = ("validation", "test")  # models are chosen by the first that the data have
MEASURED = tuple(f"{part}_" for part in CHOSEN)  # before names of numbers of a model


class Score(NamedTuple):
    """A column of a row: metric `name` of a `part`, "test" or "validation"."""

    part: str
    name: str

    @property
    def column(self) -> str:
        """Its name in a row."""
        return f"{self.part}_{self.name}"

    @property
    def title(self) -> str:
        """Its name in a table."""
        return f"{self.part} {self.name}"

    @property
    def head(self) -> str:
        """The head of its column in a table: its name, and "(%)" for a share."""
        return self.title + " (%)" * (self.factor > 1)

    @property
    def factor(self) -> int:
        """The factor for tables: 100 for a share."""
        return 100 if METRICS[self.name].percent else 1

    def of(self, row: Mapping[str, Any]) -> float:
        """Returns the number of a `row`."""
        return _number(row[self.column])

    def worth(self, value: float) -> float:
        """Returns a number that is larger for a better `value`."""
        return value if METRICS[self.name].higher else -value


def score_of(row: Iterable[str], parts: Iterable[str] = REPORTED) -> Score:
    """Returns the first metric of a row, on the first part that was measured.

    >>> score_of(["round", "test_loss", "test_rmse"]).title
    'test rmse'

    Raises:
      ValueError: if the row has no metric of these parts.
    """
    for part in parts:
        for name in row:
            head, _, metric = name.partition("_")
            if head == part and metric in METRICS:
                return Score(part, metric)
    msg = f"Expected rows with a metric of {' or '.join(parts)}, got {', '.join(row)}."
    raise ValueError(msg)


def is_column(name: Any) -> bool:
    """Returns whether a csv file can have a column of this name, as it is."""
    if not isinstance(name, str) or not name:
        return False
    return name.isprintable() and not {*name} & {*',"'}


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a `row` on data that belong to no client.

    >>> measured({"round": 3, "test_rmse": None})
    {'test_rmse': nan}
    """
    return {name: _number(row[name]) for name in row if name.startswith(MEASURED)}


def _number(value: Any) -> float:
    """Returns a number of a file; json has None for NaN."""
    return math.nan if value is None else float(value)


def marked(row: Mapping[str, Any], private: bool) -> dict[str, Any]:
    """Returns `row` under its names in a file: if `private`, hidden ones get `MARK`."""

    def name_of(name: str) -> str:
        hidden = name in HIDDEN or name.startswith(OF_CLIENTS)
        return MARK + name if private and hidden else name

    return {name_of(name): value for name, value in row.items()}


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `row` under names without `MARK`.

    >>> plain({"round": 3, "simulator_only_train_loss": 0.5})
    {'round': 3, 'train_loss': 0.5}
    """
    full = {name.removeprefix(MARK): row[name] for name in row if row[name] != ""}
    return {name.removeprefix(MARK): "" for name in row} | full


def all_plain(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns `rows` under names without `MARK`."""
    return [plain(row) for row in rows]


def column(rows: Iterable[Mapping[str, Any]], name: str) -> list[Any]:
    """Returns a column of rows, under its name with or without `MARK`.

    >>> column([{"simulator_only_bytes_up_total": 8}], "bytes_up_total")
    [8]

    Raises:
      ValueError: for rows without it, with the names that there are.
    """
    table, name = all_plain(rows), name.removeprefix(MARK)
    missing = [row for row in table if name not in row]
    if missing:
        known = ", ".join(missing[0])
        msg = f"Expected a column of {known}, got {name!r}."
        raise ValueError(msg + validate.nearest(name, [*missing[0]]))
    return [row[name] for row in table]


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
