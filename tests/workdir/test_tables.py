"""Tables whose cells have anything in them."""

import pytest

from fl_sketch.workdir import tables

pytestmark = pytest.mark.fast


def test_signs_of_markdown_are_written_out(tmp_path):
    cells = [["method", "n"], [r"FILE~1\my^opt <1e-3> | a&b", "90 % +- 2"]]
    tables.write(tmp_path, "x", cells, ["a note"])
    *_, row, empty, note = (tmp_path / "x.md").read_text().splitlines()
    assert row == r"| FILE~1\my^opt <1e-3> \| a&b | 90 % +- 2 |"
    assert (empty, note) == ("", "a note.")
