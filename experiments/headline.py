"""Makes the table of test accuracy after the last round by bytes up, on five tasks.

python -m experiments.headline

It writes results/headline.md from the standings of results/: the whole table, and the
short one of the README.
"""

import math
from collections.abc import Mapping

from experiments.verdicts import RESULTS, rows_of
from fl_sketch.core import files
from fl_sketch.workdir import tables

TASKS = (
    "[CIFAR-10](peers_cifar10/README.md), 75k",
    "[SST-2](peers_sst2/README.md), 364k",
    "[CIFAR-10 of pfl-research](pfl_cifar10/README.md), 1.6M",
    "[MiniLM on SST-2](minilm/README.md), 22.6M",
    "[MNIST, epsilon 8](private_safl/README.md), 199k",
)
ROWS = (  # a method, and its folder and name in the standings of each task
    (
        "FedAdam",
        "peers_cifar10/FedAdam",
        "peers_sst2/FedAdam",
        "pfl_cifar10/FedAdam",
        "minilm/pretrained: FedAdam",
        "private_safl/FedAdam, epsilon 8",
    ),
    ("1-bit Adam", "peers_cifar10/1-bit Adam", "peers_sst2/1-bit Adam", "", "", ""),
    (
        "SAFL",
        "safl_cifar10/SAFL, 1/10",
        "safl_sst2/SAFL, 1/10",
        "pfl_cifar10/SAFL, 1/10",
        "",
        "private_safl/SAFL, 1/10, epsilon 8",
    ),
    (
        "SAFL",
        "peers_cifar10/SAFL, 1/32",
        "peers_sst2/SAFL, 1/32",
        "",
        "minilm/pretrained: SAFL, 1/50",
        "private_safl/SAFL, 1/30, epsilon 8",
    ),
    (
        "SAFL",
        "peers_cifar10/SAFL, 1/100",
        "peers_sst2/SAFL, 1/100",
        "pfl_cifar10/SAFL, 1/100",
        "",
        "private_safl/SAFL, 1/100, epsilon 8",
    ),
    ("CD-Adam", "peers_cifar10/CD-Adam", "peers_sst2/CD-Adam", "", "", ""),
    (
        "SAFL",
        "safl_cifar10/SAFL, 1/1000",
        "safl_sst2/SAFL, 1/1000",
        "pfl_cifar10/SAFL, 1/1000",
        "minilm/pretrained: SAFL, 1/500",
        "",
    ),
    (
        "SAFL, SRHT",
        "safl_cifar10/SAFL, 1/1000, SRHT",
        "safl_sst2/SAFL, 1/1000, SRHT",
        "",
        "",
        "",
    ),
)
SHORT = {0: "CIFAR-10", 1: "SST-2", 4: "MNIST, epsilon 8"}
TOP = """# Test accuracy by bytes up

`python -m experiments.headline` makes this page: test accuracy after the last round in
per cent, with Student's 95 % half-width over three seeds (none: one seed). Bytes are of
FedAdam's, which sends the whole model; those down follow the order of the tasks.
"""


def standing(cell: str) -> dict[str, str]:
    """Returns the row of the standings that a cell names."""
    folder, _, method = cell.partition("/")
    rows = rows_of(f"{folder}/standings.csv")
    (row,) = [row for row in rows if row["method"] == method]
    return row


def fraction(times: int) -> str:
    """Returns a share of the bytes, as the table has it: "all", or such as "1/10"."""
    return "all" if times == 1 else f"1/{times}"


def table(tasks: Mapping[int, str], *, down: bool) -> list[str]:
    """Returns the lines of the table with these columns of `ROWS`, by their heads.

    How many times fewer bytes a cell has than FedAdam is rounded to two digits.
    """
    cells = [["bytes up", "method", *tasks.values(), *["bytes down"] * down]]
    for method, *names in ROWS:
        row, ups, parts = [], [], []
        for task in tasks:
            if not names[task]:
                row.append("-")
                parts.append("-")
                continue
            own, whole = standing(names[task]), standing(ROWS[0][1 + task])
            mean, half = 100 * float(own["accuracy"]), 100 * float(own["half_width"])
            row.append(f"{mean:.2f}" + (math.isfinite(half) * f" ± {half:.2f}"))
            up, part = (
                round(float(f"{float(whole[way]) / float(own[way]):.2g}"))
                for way in ("bytes_up", "bytes_down")
            )
            ups.append(up)
            parts.append(fraction(part))
        ends = sorted({min(ups), max(ups)})
        parts = ["all"] if {*parts} == {"all"} else parts
        cells.append([" to ".join(map(fraction, ends)), method, *row])
        cells[-1] += [", ".join(parts)] * down
    return tables.markdown(cells)


def page() -> str:
    """Returns the text of results/headline.md."""
    whole = table(dict(enumerate(TASKS)), down=True)
    return "\n".join([TOP, *whole, "", *table(SHORT, down=False), ""])


if __name__ == "__main__":
    files.write_text(RESULTS / "headline.md", page())
