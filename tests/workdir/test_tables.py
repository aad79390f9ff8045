"""Tables whose cells have anything in them."""

import pytest

from fl_sketch.workdir import tables

pytestmark = pytest.mark.fast


def test_signs_of_latex_and_markdown_are_written_out(tmp_path):
    cells = [["method", "n"], [r"FILE~1\my^opt <1e-3> | a&b", "90 % +- 2"]]
    tables.write(tmp_path, "x", cells, ["a note"])
    head, row = (tmp_path / "x.tex").read_text().splitlines()[2:5:2]
    assert head == r"method & n \\"
    assert row == (
        r"FILE\textasciitilde{}1\textbackslash{}my\textasciicircum{}opt $<$1e-3$>$ "
        r"| a\&b & 90 \% $\pm$ 2 \\"
    )
    *_, row, empty, note = (tmp_path / "x.md").read_text().splitlines()
    assert row == r"| FILE~1\my^opt <1e-3> \| a&b | 90 % +- 2 |"
    assert (empty, note) == ("", "a note.")
