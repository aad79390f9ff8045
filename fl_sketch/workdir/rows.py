"""Rows of metrics: which columns a private run may publish, and which score counts.

A row has all columns by plain names. In the folder of a private run, metrics.csv has
those that depend on released models and test data alone. All others, as the losses of
clients or exact bytes, which reveal who took part, are in simulator.csv.
"""

import math
import pathlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from fl_sketch.core import files
from fl_sketch.models.metrics import METRICS

SIMULATOR = "simulator"  # begins the names of what a private run must not publish
# What a private run may publish: what follows from released models and public data.
PRIVATE_OK = ("round", "rounds", "epsilon", "delta", "randomness", "threshold")
PRIVATE_OK_STARTS = ("test_", "validation_", "noised_")
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


def may_be_published(name: str) -> bool:
    """Returns whether a private run may publish a column: one that is known to be safe.

    >>> may_be_published("test_loss"), may_be_published("train_loss")
    (True, False)
    """
    return name in PRIVATE_OK or name.startswith(PRIVATE_OK_STARTS)


def published(row: Mapping[str, Any], also: Collection[str] = ()) -> dict[str, Any]:
    """Returns what a private run may publish of a row, and the columns `also`."""
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
        if any(None in part or None in part.values() for part in parts):
            break  # torn, or edited
        if len({part.get("round") for part in parts}) > 1:
            break
        whole.append({k: v for part in parts for k, v in part.items()})
    return whole


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
