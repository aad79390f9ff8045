"""The names of numbers in rows and summaries: which of them only a simulator may see.

In a private run, what is measured on clients' data, and who took part (exact bytes say
how many did), stands in columns whose names say so: who publishes the file publishes
them knowingly. Everything else follows from what was released, and from test data.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fl_sketch.engine.round import MARK

HIDDEN = (
    "train_loss",
    "bytes_up_total",
    "bytes_down_total",
    "bytes_up_per_client_round",
    "bytes_down_per_client_round",
    "bytes_up",
    "bytes_down",
)


def marked(row: Mapping[str, Any], private: bool) -> dict[str, Any]:
    """Returns `row` by its names in a file; if `private`, `HIDDEN` ones get `MARK`."""
    return {
        MARK + name if private and name in HIDDEN else name: value
        for name, value in row.items()
    }


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `row` with plain names, for those who draw or print it.

    >>> plain({"round": 3, "simulator_only_train_loss": 0.5})
    {'round': 3, 'train_loss': 0.5}
    """
    found = {name.removeprefix(MARK): row[name] for name in row if row[name] != ""}
    return {name.removeprefix(MARK): "" for name in row} | found


def all_plain(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns `rows` with plain names."""
    return [plain(row) for row in rows]


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
    """Returns a `count` of bytes for a column of MB; what is long has its own unit.

    >>> megabytes(11_040_000), megabytes(99_999_000_000), megabytes(1e11)
    ('11.04', '99999.00', '100 GB')
    """
    return f"{count / 1e6:.2f}" if count < 1e11 else sized(count)
