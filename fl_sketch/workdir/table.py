"""The rows of a folder: a csv file that grows, of which nothing is lost or mistaken.

A row is known by what it is, and not by its place in the file. Where checkpoints hold
all rows, the file is written again from there. Elsewhere a sum beside it says which
rows were written: with others nobody goes on.
"""

import csv
import hashlib
import io
import json
import os
import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from fl_sketch.core import untrusted_files
from fl_sketch.core.files import read_rows, unlinked, write_text

Row = dict[str, Any]


class Table:
    """A csv file at `path` and its `rows`, those that were read as texts."""

    def __init__(
        self, path: pathlib.Path, timed: Collection[str] = (), *, summed: bool
    ):
        """Takes a file that there may be.

        Args:
          path: path of the file.
          timed: the columns of measured times, in which equal runs may differ.
          summed: whether a sum beside the file stands for its rows.
        """
        self.path, self.rows, self._timed = path, list[Row](), timed
        self._sum = path.with_name(f".{path.name}.sum") if summed else None
        self._hashed, self._lines = hashlib.sha256(), 0  # of the file, head and rows

    @property
    def text(self) -> str:
        """The file, as equal runs have it: without times."""
        return _written([self._untimed(row) for row in self.rows])

    def add(self, *rows: Row) -> None:
        """Adds `rows` to the file, and to the disk."""
        columns = list((self.rows or rows)[0])  # as they stand in the head
        text = _written(rows, columns, head=not self.rows)
        try:
            with open(self.path, "a", newline="", opener=unlinked) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            msg = (
                f"Expected room for a row in {self.path}, got {error.strerror}: the "
                "same command goes on from the last checkpoint."
            )
            raise ValueError(msg) from None
        self.rows.extend(rows)
        self._count(text.splitlines(True))

    def restore(self, text: str, due: Callable[[Row], bool]) -> bool:
        """Makes the file one of those rows of a `text` that are `due`.

        Where it has them, with their times, they stay.

        Returns:
          Whether it began with this text before.
        """
        rows = list(csv.DictReader(text.splitlines()))
        try:
            there = read_rows(self.path, whole=True)[: len(rows)]
            same = [self._untimed(row) for row in there] == rows
        except (OSError, ValueError, csv.Error):  # whatever somebody made of it
            there, same = [], not rows
        self.rows = [row for row in (there if same else rows) if due(row)]
        self._write(_written(self.rows).splitlines(True))
        return same

    def _untimed(self, row: Row) -> Row:
        return row | {name: "nan" for name in self._timed if name in row}

    def keep(self, how_many: Callable[[list[Row]], int]) -> None:
        """Forgets all rows but the first ones, as many as `how_many` says of them.

        Raises:
          ValueError: in one line, for rows that were not written here.
        """
        assert self._sum
        counted, own = 0, ""
        if self.path.exists() and not self._sum.exists():
            msg = (
                f"Expected {self._sum} beside {self.path}, by which its rows are known "
                "again, got none: put it back, or take another workdir."
            )
            raise ValueError(msg)
        if self._sum.exists():
            with untrusted_files.reading(
                self._sum, "to be a sum of rows as it was written"
            ):
                counted, own = json.loads(self._sum.read_text())
        # What was written after the last sum may be torn.
        with untrusted_files.reading(self.path, "to be rows as they were written"):
            text = self.path.read_text() if self.path.exists() else ""
        lines = text.splitlines(True)[: counted + 1]
        if counted and (len(lines) <= counted or _sum_of(lines) != own):
            msg = (
                f"Expected the first {counted} rows of {self.path} as they were "
                "written, got other ones: put them back, or take another workdir."
            )
            raise ValueError(msg)
        rows = list(csv.DictReader(lines)) if counted else []
        self.rows = rows[: how_many(rows)]
        self._write(lines[: len(self.rows) + 1])

    def _write(self, lines: list[str]) -> None:
        """Writes a head and rows; without these there is no file."""
        lines = lines if len(lines) > 1 else []
        if lines:
            write_text(self.path, "".join(lines))
        else:
            self.path.unlink(missing_ok=True)
        self._hashed, self._lines = hashlib.sha256(), 0
        self._count(lines)

    def _count(self, added: list[str]) -> None:
        """Writes the sum of all rows, of which these lines are the last."""
        if not self._sum:
            return
        self._hashed.update("".join(added).encode())
        self._lines += len(added)
        # Also of no rows: a file without a sum is somebody else's.
        own = [max(0, self._lines - 1), self._hashed.hexdigest()]
        write_text(self._sum, json.dumps(own) + "\n")


def _written(
    rows: Sequence[Row], columns: Sequence[str] = (), *, head: bool = True
) -> str:
    """Returns rows as csv, with a `head` or without; nothing, if there are none."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or list(rows[0]), lineterminator="\n")
    if head:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _sum_of(lines: Sequence[str]) -> str:
    return hashlib.sha256("".join(lines).encode()).hexdigest()
