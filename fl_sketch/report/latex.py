r"""Tables for papers: from lines of Markdown to LaTeX, for the package booktabs.

>>> print("\n".join(tabular(["| a_b | n |", "| --- | --- |", "| 90 % | 1 +- 2 |"])))
\begin{tabular}{ll}
\toprule
a\_b & n \\
\midrule
90 \% & 1 $\pm$ 2 \\
\bottomrule
\end{tabular}
"""

import re
from collections.abc import Sequence

SPECIAL = re.compile(r"[&%$#_{}]")


def tabular(lines: Sequence[str]) -> list[str]:
    """Returns the lines of a table in LaTeX.

    Args:
      lines: those of one in Markdown: a head, a rule and rows.
    """
    head, _, *rows = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in lines
    )
    return [
        rf"\begin{{tabular}}{{{'l' * len(head)}}}",
        r"\toprule",
        _row(head),
        r"\midrule",
        *map(_row, rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _row(cells: Sequence[str]) -> str:
    def escaped(cell: str) -> str:
        return SPECIAL.sub(lambda found: f"\\{found[0]}", cell).replace("+-", r"$\pm$")

    return " & ".join(map(escaped, cells)) + r" \\"
