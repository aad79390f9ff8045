"""The names of numbers in rows and summaries: which of them only a simulator may see.

In a private run, what is measured on clients' data, and who took part (exact bytes say
how many did), stands in columns whose names say so: who publishes the file publishes
them knowingly. Everything else follows from what was released, and from test data.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fl_sketch.models.metrics import METRICS

MARK = "simulator_only_"  # before names of what a private run must not give away
COSTS = (
    "bytes_up_total",
    "bytes_down_total",
    "bytes_up_per_client_round",
    "bytes_down_per_client_round",
    "bytes_up",
    "bytes_down",
    "asked",
    "answered",
)
OF_CLIENTS = ("train_", "mechanism_", "clients_", "personal_")  # of clients' data


class Score(NamedTuple):
    """The number of a row by which a model is chosen, or reported.

    Attributes:
      part: the part of the data that it was measured on: "test" or "validation".
      name: the name of the metric.
    """

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
    def factor(self) -> int:
        """What tables multiply it by: 100 for a share."""
        return 100 if METRICS[self.name].percent else 1

    def of(self, row: Mapping[str, Any]) -> float:
        """Returns the number of a `row`."""
        return float(row[self.column])

    def worth(self, value: float) -> float:
        """Returns a `value` so that more is better."""
        return value if METRICS[self.name].higher else -value


REPORTED = ("test",)
CHOSEN = ("validation", "test")  # by the first of these parts that the data have
MEASURED = tuple(f"{part}_" for part in CHOSEN)  # what such names begin with


def score_of(row: Iterable[str], parts: Iterable[str] = REPORTED) -> Score:
    """Returns what a model is reported by, the first metric of a row.

    >>> score_of(["round", "test_loss", "test_mae", "test_r2"]).title
    'test mae'

    Args:
      row: a row, or its names.
      parts: the parts of the data, of which the first that was measured counts.

    Raises:
      ValueError: if nothing was.
    """
    for part in parts:
        for name in row:
            head, _, metric = name.partition("_")
            if head == part and metric in METRICS:
                return Score(part, metric)
    msg = f"Expected rows with a metric of {' or '.join(parts)}, got {', '.join(row)}."
    raise ValueError(msg)


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns what a `row` says of the model on data that are no client's."""
    return {name: float(row[name]) for name in row if name.startswith(MEASURED)}


def marked(row: Mapping[str, Any], private: bool) -> dict[str, Any]:
    """Returns `row` by its names in a file.

    If `private`, names of costs and of what clients measured get `MARK`.
    """

    def hidden(name):
        return name in COSTS or name.startswith(OF_CLIENTS)

    return {
        MARK + name if private and hidden(name) else name: value
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
