"""Tables whose cells have anything in them."""

from fl_sketch.workdir import tables


def test_what_latex_reads_as_its_own_is_written_out():
    rows = [["method", "n"], [r"FILE~1\my^opt <1e-3> | a&b", "90 % +- 2"]]
    head, own = tables.tabular(tables.markdown(rows))[2:5:2]
    assert head == r"method & n \\"
    assert own == (
        r"FILE\textasciitilde{}1\textbackslash{}my\textasciicircum{}opt $<$1e-3$>$ "
        r"| a\&b & 90 \% $\pm$ 2 \\"
    )
