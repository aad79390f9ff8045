"""Tables of measurements are printed while they grow, and kept."""

from typing import Annotated, NamedTuple

import pytest

from fl_sketch.core import files
from fl_sketch.experiments.measurements import Column, Table


class Row(NamedTuple):
    name: Annotated[str, Column("6")]
    rounds: Annotated[int, Column("5d", "T")]
    error: Annotated[float | None, Column("8.3g", "|x|")]
    seconds: float


TABLE = Table.of(Row)


def test_a_row_is_printed_and_kept_before_the_next_is_measured(tmp_path):
    path, printed = tmp_path / "rows.csv", []

    def rows():
        yield Row("a", 10, 1 / 3, 0.1)
        assert printed == ["name       T      |x|", "a         10    0.333"]
        assert len(files.read_rows(path)) == 1
        yield Row("longer", 7, None, 0.2)

    measured = TABLE.record(rows(), str(path), printed.append)
    assert printed[-1] == "longer     7"
    assert [row.name for row in measured] == ["a", "longer"]
    kept = files.read_rows(path)
    assert [*kept[0].values()] == ["a", "10", str(1 / 3), "0.1"]
    assert kept[1]["error"] == ""


def test_dictionaries_are_rows_too_and_lack_what_they_lack(capsys):
    (row,) = TABLE.record([{"name": "b", "error": 2.0, "seconds": 1.0}])
    assert row["seconds"] == 1.0
    assert capsys.readouterr().out.splitlines()[1] == "b                   2"


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured():
    def rows():
        pytest.fail("measured")
        yield

    with pytest.raises(ValueError, match="/proc/x"):
        TABLE.record(rows(), "/proc/x/rows.csv")
