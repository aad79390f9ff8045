"""Tables of measurements: printed while they grow, and kept as csv files.

>>> class Row(NamedTuple):
...     method: Annotated[str, Column("8")]
...     error: Annotated[float, Column("9.3g", "|x - x*|")]
...     seconds: float
>>> _ = Table.of(Row).record([Row("FedAvg", 0.5, 3.1)])
method    |x - x*|
FedAvg         0.5
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from fl_sketch.core import files

Row = TypeVar("Row")  # a named tuple, or a dictionary by the names of columns


def print_line(line: str) -> None:
    """Prints a line at once, also into a pipe."""
    print(line, flush=True)


class Column(NamedTuple):
    """A printed column.

    Attributes:
      form: the format of its values, which begins with a width, as "20" for texts or
        "9.3g" for numbers.
      title: what is printed above it; by default its name in a row.
    """

    form: str
    title: str | None = None

    def head(self, name: str) -> str:
        """Returns the title, as wide as the values and on their side."""
        width = re.match(r"\d*", self.form)[0]  # pyright: ignore[reportOptionalSubscript]
        side = ">" if self.form[-1:].isalpha() else "<"
        title = name if self.title is None else self.title
        return f"{title:{side}{width}}"


class Table:
    """The rows of a study: all values are kept, and those with a column are printed."""

    def __init__(self, columns: Mapping[str, Column]):
        """Takes the columns from left to right, by their names in a row."""
        self.columns = columns

    @classmethod
    def of(cls, row: type) -> "Table":
        """Returns the table of a class whose fields are annotated with columns."""
        hints = get_type_hints(row, include_extras=True)
        printed = {n: h for n, h in hints.items() if get_origin(h) is Annotated}
        return cls({name: get_args(hint)[1] for name, hint in printed.items()})

    @property
    def head(self) -> str:
        """The line of titles."""
        heads = [column.head(name) for name, column in self.columns.items()]
        return " ".join(heads).rstrip()

    def line(self, row: Any) -> str:
        """Returns a row as a line below `head`; a value that is None is left blank."""
        values, cells = as_dict(row), []
        for name, column in self.columns.items():
            value, blank = values.get(name), " " * len(column.head(name))
            cells.append(blank if value is None else format(value, column.form))
        return " ".join(cells).rstrip()

    def record(
        self,
        rows: Iterable[Row],
        path: str | None = None,
        say: Callable[[str], None] = print_line,
    ) -> list[Row]:
        """Prints rows as they are measured, and returns them.

        Args:
          path: a csv file, which is written again after every row.
        """
        if path:
            files.writable_file(path)  # before anything is measured
        say(self.head)
        measured = []
        for row in rows:
            say(self.line(row))
            measured.append(row)
            if path:
                files.write_rows(path, [as_dict(row) for row in measured])
        return measured


def as_dict(row: Any) -> Mapping[str, Any]:
    """Returns the values of a row by name."""
    return row if isinstance(row, Mapping) else row._asdict()
