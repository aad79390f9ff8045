r"""Tables to paste: rows of Markdown, and LaTeX of them, for the package booktabs.

>>> lines = markdown([["a_b", "n|m"], ["90 %", "1 +- 2"]])
>>> print("\n".join(lines))
| a_b | n\|m |
| --- | --- |
| 90 % | 1 +- 2 |
>>> print("\n".join(tabular(lines)))
\begin{tabular}{ll}
\toprule
a\_b & n|m \\
\midrule
90 \% & 1 $\pm$ 2 \\
\bottomrule
\end{tabular}
"""

import re
from collections.abc import Sequence

BAR = re.compile(r"(?<!\\)\|")  # between cells
SPECIAL = re.compile(r"\+-|[\\&%$#_{}^~<>]")
WORDS = {
    "+-": r"$\pm$",
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": "$<$",
    ">": "$>$",
}


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table in Markdown.

    Args:
      rows: the cells of a head, and of every row.
    """
    head, *rest = rows
    return [*map(_line, (head, ["---"] * len(head), *rest))]


def tabular(lines: Sequence[str]) -> list[str]:
    """Returns the lines of a table in LaTeX.

    Args:
      lines: those that `markdown` returned.
    """
    head, _, *rows = (_cells(line) for line in lines)
    return [
        rf"\begin{{tabular}}{{{'l' * len(head)}}}",
        r"\toprule",
        _row(head),
        r"\midrule",
        *map(_row, rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _cells(line: str) -> list[str]:
    return [cell.strip().replace(r"\|", "|") for cell in BAR.split(line)[1:-1]]


def _row(cells: Sequence[str]) -> str:
    def escaped(cell: str) -> str:
        return SPECIAL.sub(lambda found: WORDS.get(found[0], f"\\{found[0]}"), cell)

    return " & ".join(map(escaped, cells)) + r" \\"
