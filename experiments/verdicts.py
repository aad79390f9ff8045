"""Decides claims of results/README.md by its rule, from the rows of results/.

python -m experiments.verdicts

results/pairs.csv names the two methods that each cell of a claim compares. This command
writes results/verdicts.md: their differences, and how many searches of rates ended
inside of their grids.
"""

import csv
import functools
import math
import pathlib
import statistics

from fl_sketch.core import files
from fl_sketch.workdir import tables

RESULTS = pathlib.Path(__file__).parents[1] / "results"
MARGIN = 1.0  # point of accuracy, or per cent of bits or of loss
TOP = """# Verdicts, cell by cell

`python -m experiments.verdicts` makes this page from the rows that
[pairs.csv](pairs.csv) names, and [the rule](README.md) says what the words mean. A
difference is of what is claimed to be more, or as much, less the other: points of
accuracy or of training error, rounds, or per cent of the loss left, seed by seed, or
per cent of bits, not paired, with Student's 95 % half-width. The second table has the
searches of rates whose best point is at no end of its grid.
"""


@functools.cache
def rows_of(name: str) -> list[dict[str, str]]:
    """Returns the rows of a csv file of results/."""
    return [*csv.DictReader((RESULTS / name).read_text().splitlines())]


def selected(name: str, where: str) -> list[dict[str, str]]:
    """Returns the rows of a file that have some values; `round=96-100` is a range."""
    rows = rows_of(name)
    for key, value in (condition.split("=", 1) for condition in where.split("; ")):
        first, _, last = value.partition("-")
        if key == "round":
            allowed = range(int(first), int(last or first) + 1)
            rows = [row for row in rows if int(row[key]) in allowed]
        else:
            rows = [row for row in rows if row[key] == value]
    if not rows:
        message = f"results/{name} has no row with {where}"
        raise ValueError(message)
    return rows


def difference(pair: dict[str, str]) -> tuple[float, float, int]:
    """Returns the first's score less the second's, its half-width, and its seeds.

    Scores of seeds are paired, and in per cent but for rounds. Of `excess` and `bits`
    this is the second's saving, in per cent of the first's, of each seed and of means
    of five seeds with intervals.
    """
    places = pair["file"], pair["other"] or pair["file"]
    chosen = [
        selected(name, f"{pair[method]}; {pair['where']}")
        for name, method in zip(places, ("first", "second"), strict=True)
    ]
    if pair["score"] == "bits":
        (one,), (two,) = chosen
        ratio = float(two["bits"]) / float(one["bits"])
        errors = [float(row["half_width"]) / float(row["rounds"]) for row in (one, two)]
        return 100 * (1 - ratio), 100 * ratio * math.hypot(*errors), 5
    means = []
    for rows in chosen:
        of_seeds: dict[str, list[float]] = {}
        for row in rows:
            of_seeds.setdefault(row["seed"], []).append(float(row[pair["score"]]))
        unit = 1 if pair["score"].startswith("rounds") else 100
        means.append({s: unit * statistics.mean(own) for s, own in of_seeds.items()})
    both = [(means[0][seed], means[1][seed]) for seed in means[0] if seed in means[1]]
    saves = pair["score"] == "excess"
    apart = [100 * (1 - two / one) if saves else one - two for one, two in both]
    return statistics.mean(apart), tables.half_width(apart), len(apart)


def verdict(says: str, mean: float, half: float) -> str:
    """Returns the word of the rule in results/README.md."""
    low, high = mean - half, mean + half
    side = 0.0 if says == "more" else -MARGIN
    if low > side:
        return "Holds"
    if high < side or (low > -MARGIN and high < MARGIN):
        return "Fails"
    return "Not told"


def at_ends(name: str) -> tuple[int, list[str]]:
    """Returns how many searches a file has, and which ended at an end of their grids.

    A search ends inside if its best point is at no end of any knob that it moved.
    """
    searches: dict[str, list[dict[str, str]]] = {}
    for row in rows_of(name):
        width = f"width {row['width']}: " if "width" in row else ""
        searches.setdefault(width + row["method"], []).append(row)
    ends = []
    for method, rows in searches.items():
        ran = [row for row in rows if math.isfinite(float(row["accuracy"] or "nan"))]
        best = max(ran, key=lambda row: float(row["accuracy"]))
        for knob in (key for key in best if "." in key and best[key]):
            grid = {float(row[knob]) for row in rows if row[knob]}
            if len(grid) > 1 and float(best[knob]) in (min(grid), max(grid)):
                ends.append(method)
                break
    return len(searches), ends


def page() -> str:
    """Returns the text of results/verdicts.md."""
    cells = [["claim", "cell", "difference", "seeds", "verdict"]]
    for pair in rows_of("pairs.csv"):
        mean, half, seeds = difference(pair)
        word = verdict(pair["says"], mean, half)
        apart = f"{mean:.2f} ± {half:.2f}"
        cells.append([pair["claim"], pair["cell"], apart, str(seeds), word])
    searches = [["searches", "inside of their grids", "at an end"]]
    for path in sorted(RESULTS.rglob("search.csv")):
        name = str(path.relative_to(RESULTS))
        if "method" in rows_of(name)[0]:
            number, ends = at_ends(name)
            inside = f"{number - len(ends)}/{number}"
            searches.append([name.removesuffix("/search.csv"), inside, "; ".join(ends)])
    return "\n".join([TOP, *tables.markdown(cells), "", *tables.markdown(searches), ""])


if __name__ == "__main__":
    files.write_text(RESULTS / "verdicts.md", page())
