"""What came of a comparison: a row for each method, as tables, csv and picture."""

import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fl_sketch.core import files
from fl_sketch.models.metrics import METRICS
from fl_sketch.privacy.guarantee import mark, rounded_up
from fl_sketch.sweep import pictures
from fl_sketch.sweep.grid import shown
from fl_sketch.workdir import tables
from fl_sketch.workdir.rows import REPORTED, Score, all_plain, marked, score_of, sized

Row = dict[str, Any]
CONFIDENCE = 0.95
HEAD = ("at equal MB up", "MB up", "MB down")
PRIVATE = ("epsilon of a run",)
LAST = ("chosen",)


def score(
    rows: Sequence[Mapping[str, str]], last: int, parts: Sequence[str] = REPORTED
) -> float:
    """Returns the mean score of the `last` of the `rows`; NaN if it diverged.

    Of fewer rows it is the mean of all.

    Args:
      rows: evaluations of one run, in order.
      last: the number of these that count.
      parts: the parts of the data, of which the first that was measured counts.
    """
    by = score_of(rows[0], parts)
    return statistics.fmean(by.of(row) for row in rows[-last:])


def row(
    name: str, chosen: Mapping[str, Any], rows: Iterable[Mapping[str, str]], last: int
) -> Row:
    """Returns what came of a method.

    Args:
      name: the name of the method.
      chosen: the keys that were tuned and their values.
      rows: all evaluations of all seeds.
      last: the number of evaluations that the mean counts, the last ones.
    """
    seeds = list(pictures.by_point(rows).values())
    scores = [score(own, last) for own in seeds]
    ends = [own[-1] for own in seeds]
    return {
        "method": name,
        score_of(ends[0]).name: statistics.fmean(scores),
        "half_width": half_width(scores),
        "train_loss": statistics.fmean(float(end["train_loss"]) for end in ends),
        "seeds": len(seeds),
        "diverged": sum(not math.isfinite(one) for one in scores),
        "bytes_up": statistics.fmean(float(end["bytes_up_total"]) for end in ends),
        "bytes_down": statistics.fmean(float(end["bytes_down_total"]) for end in ends),
        "rounds": int(ends[0]["round"]),
        **given_away(ends),
        "chosen": " ".join(f"{key}={shown(value)}" for key, value in chosen.items()),
    }


def given_away(ends: Sequence[Mapping[str, str]]) -> Row:
    """Returns the worst epsilon of the seeds, and its delta; empty: all is given away.

    Seeds deal out the examples anew, on which a unit of examples depends.

    Args:
      ends: the last evaluation of each seed.
    """
    spent = [float(end["epsilon"]) for end in ends if end.get("epsilon")]
    if not spent:
        return {"epsilon": "", "delta": "", "randomness": ""}
    return {
        "epsilon": max(spent),
        "delta": ends[0]["delta"],
        "randomness": ends[0]["randomness"],
    }


def half_width(values: Sequence[float]) -> float:
    """Returns half of Student's 95% interval of the mean of `values`, or NaN.

    There is none of a single value, or if one of them is not finite.

    >>> round(half_width([1.0, 2.0, 3.0]), 3)
    2.484
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    from scipy import stats  # takes half a second to import

    t = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    return float(t * statistics.stdev(values) / len(values) ** 0.5)


def at_budget(
    rows: Iterable[Mapping[str, str]], name: str, budget: float, last: int
) -> float:
    """Returns a method's mean accuracy over its last evaluations within bytes up.

    Args:
      rows: all evaluations of all methods.
      name: the name of the method.
      budget: the bytes that all clients together may have sent up.
      last: the number of evaluations that count of each seed, the last ones within.

    Returns:
      The mean over seeds; NaN where one has no evaluation within the budget.
    """
    own = (row for row in rows if row["method"] == name)
    found = []
    for evaluations in pictures.by_point(own).values():
        within = [r for r in evaluations if float(r["bytes_up_total"]) <= budget]
        found.append(score(within, last) if within else math.nan)
    return statistics.fmean(found)


def said(row: Row) -> str:
    """Returns a row, made by `row`, as a sentence."""
    lost = f", {row['diverged']} of them diverged" if row["diverged"] else ""
    return (
        f"test {_metric(row)} {_mean(row)} over {row['seeds']} seeds{lost}; "
        f"{sized(row['bytes_up'])} up, {sized(row['bytes_down'])} down"
    )


def table(rows: Sequence[Row]) -> list[str]:
    """Returns a table in markdown: its head, and a line for each method.

    Args:
      rows: a row for each method, made by `row`. The score at equal bytes up is
        there where `write` has added it, and epsilon where a method is private.
    """
    private = PRIVATE if any(row["epsilon"] for row in rows) else ()
    mark = " (simulator only)" * bool(private)  # exact bytes say who took part
    own = (f"{name}{mark}" if "MB" in name else name for name in HEAD)
    metric = _metric(rows[0])
    head = ("method", f"test {metric}, +- 95 % interval", *own, *private, *LAST)
    cells: list[Sequence[str]] = [head]
    for row in rows:
        equal = row.get(f"{metric}_at_budget", math.nan)
        cells.append(
            [
                row["method"],
                _mean(row),
                "-" if math.isnan(equal) else f"{_factor(metric) * equal:.2f}",
                sized(row["bytes_up"]).removesuffix(" MB"),
                sized(row["bytes_down"]).removesuffix(" MB"),
                *[_private(row)] * len(private),
                row["chosen"],
            ]
        )
    return tables.markdown(cells)


def _private(row: Row) -> str:
    """Returns what a run of a method gives away, as a cell."""
    if not row["epsilon"]:
        return "all"
    return f"{rounded_up(float(row['epsilon']))}{mark(row['randomness'])}"


def write(
    folder: pathlib.Path,
    rows: list[Row],
    evaluations: list[Row],
    last: int,
    given: Sequence[str] = (),
) -> None:
    """Writes the table, all numbers and the picture; adds the score at equal bytes.

    The budget is what the cheapest method sends, with the seed that sends most.

    Args:
      folder: the folder for the files.
      rows: a row for each method.
      evaluations: all rows of all runs that are reported.
      last: the number of evaluations that a score is the mean of, the last ones.
      given: lines on what all runs give away together.
    """
    evaluations = all_plain(evaluations)
    sent: dict[str, list[float]] = {}
    for one in evaluations:
        sent.setdefault(one["method"], []).append(float(one["bytes_up_total"]))
    budget = min(map(max, sent.values()))
    for row in rows:
        at_equal = at_budget(evaluations, row["method"], budget, last)
        row[f"{_metric(row)}_at_budget"] = at_equal
    hidden = any(row["epsilon"] for row in rows)
    for name, table_ in (("comparison.csv", evaluations), ("standings.csv", rows)):
        files.write_rows(folder / name, [marked(row, hidden) for row in table_])
    lines = [*table(rows), *(f"\n{line}." for line in given)]
    files.write_text(folder / "standings.md", "\n".join(lines) + "\n")
    tex = "\n".join(tables.tabular(table(rows))) + "\n"
    files.write_text(folder / "standings.tex", tex)
    pictures.draw(evaluations, folder / "comparison.png")


def _metric(row: Row) -> str:
    """Returns the name of the metric that a row reports."""
    return next(name for name in row if name in METRICS)


def _factor(metric: str) -> int:
    return Score("test", metric).factor


def _mean(row: Row) -> str:
    """Returns the mean, shares in percent, with its interval if that says anything."""
    metric = _metric(row)
    mean, half, factor = row[metric], row["half_width"], _factor(metric)
    if math.isnan(mean):
        return "diverged"
    inside = half <= (min(mean, 1 - mean) if METRICS[metric].percent else math.inf)
    if not inside:  # or there is none
        return f"{factor * mean:.2f}"
    return f"{factor * mean:.2f} +- {factor * half:.2f}"
