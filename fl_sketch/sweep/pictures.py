"""Curves of several methods: a score against rounds, bytes, time or epsilon."""

import math
import os
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fl_sketch.core import files, validate
from fl_sketch.models.metrics import METRICS
from fl_sketch.workdir.rows import all_plain, score_of

Row = Mapping[str, str]
TITLED = 9  # letters of a title on an inch
STYLES = ("-", "--", ":")  # there are ten colours
LOSSES = ("train_loss", "test_loss", "validation_loss")


class Axis(NamedTuple):
    """What a curve may go along.

    Attributes:
      label: the words below the axis.
      columns: the columns of which the sum is taken.
      log: whether it is drawn on a log scale, of bytes.
    """

    label: str
    columns: tuple[str, ...]
    log: bool = False

    def of(self, rows: Sequence[Row]) -> float:
        """Returns the mean over seeds, of which these are the `rows`."""
        return statistics.fmean(
            sum(float(row[name]) for name in self.columns) for row in rows
        )


UP, DOWN = "bytes_up_total", "bytes_down_total"
AXES = {
    "rounds": Axis("round", ("round",)),
    "up": Axis("sent by all clients", (UP,), log=True),
    "down": Axis("received by all clients", (DOWN,), log=True),
    "both": Axis("sent and received by all clients", (UP, DOWN), log=True),
    "seconds": Axis("simulated seconds", ("simulated_seconds",)),
    "epsilon": Axis("epsilon", ("epsilon",)),
}


class Asked(NamedTuple):
    """What a picture is to show.

    Attributes:
      xs: names of `AXES`, a panel for each.
      metric: the name of the metric or column; empty: what models are reported by.
      labels: words for the legend, by the name of a method.
      title: the words above; empty: none.
    """

    xs: tuple[str, ...] = ("rounds", "up", "both")
    metric: str = ""
    labels: Mapping[str, str] = {}
    title: str = ""


def by_point(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Returns the evaluations of each point of a sweep, in order, by plain names.

    Args:
      rows: the rows of sweep.csv, of which each has the number of a point.
    """
    points: dict[int, list] = {}
    for row in all_plain(rows):
        points.setdefault(int(row["point"]), []).append(row)
    return points


def draw(
    evaluations: Sequence[Row],
    path: str | os.PathLike,
    asked: Asked = Asked(),  # noqa: B008 - immutable
) -> None:
    """Draws curves: the mean of each method's seeds, and their range as a band.

    Args:
      evaluations: all rows of all runs, each with a method, a point and plain names.
      path: the path of the picture, which ends in .png, .pdf or .svg.
      asked: what to show.

    Raises:
      ValueError: in one line, for an axis or a metric that the rows do not have.
    """
    from matplotlib.figure import Figure  # takes a second to import

    column, title = _column(evaluations, asked.metric)
    axes = [_axis(name, evaluations) for name in asked.xs]
    count = len(axes)
    figure = Figure(figsize=(2.5 + 3.8 * count, 4.2), layout="constrained")
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    counts = set()
    for number, name in enumerate(dict.fromkeys(row["method"] for row in evaluations)):
        own = (row for row in evaluations if row["method"] == name)
        seeds = list(by_point(own).values())
        counts.add(len(seeds))
        # The seeds' evaluations side by side, as far as all of them have come.
        places = list(zip(*seeds, strict=False))
        style = STYLES[number // 10 % len(STYLES)]
        said = {"linestyle": style, "label": asked.labels.get(name, name)}
        _draw_method(panels, axes, places, column, said)
    for panel, axis in zip(panels, axes, strict=True):
        _scale(panel, axis)
    panels[0].set(ylabel=title)
    if asked.title:
        wide = int(TITLED * (2.5 + 3.8 * count))
        figure.suptitle("\n".join(textwrap.wrap(asked.title, wide)))
    figure.legend(
        handles=panels[0].get_lines(),
        loc="outside right upper",
        fontsize="small",
        title=_band(counts),
        title_fontsize="small",
    )
    files.write_figure(path, figure)


def require_numbers(evaluations: Sequence[Row], asked: Asked) -> None:
    """Raises for evaluations of which nothing would be seen.

    Args:
      evaluations: all rows of all runs, as `draw` has them.
      asked: what is to be shown.

    Raises:
      ValueError: in one line, if no number is finite.
    """
    column, _ = _column(evaluations, asked.metric)
    if not any(math.isfinite(float(row[column])) for row in evaluations):
        msg = f"Expected numbers in {column}, got nothing that is finite."
        raise ValueError(msg)


def _band(counts: set[int]) -> str | None:
    """Says what a line and its band are, of methods with so many seeds."""
    if max(counts) == 1:
        return None
    many = f"{'up to ' * (len(counts) > 1)}{max(counts)}"
    return f"line: mean of {many} seeds\nband: their range"


def reached(
    evaluations: Sequence[Row],
    value: float,
    asked: Asked = Asked(),  # noqa: B008
) -> list[dict[str, Any]]:
    """Returns what each method took to reach a score: rounds and bytes, best first.

    They are means over seeds, each at its first evaluation that is good enough; none of
    a method of which one seed has none.

    Args:
      evaluations: all rows of all runs, as `draw` has them.
      value: the score.
      asked: what counts as score.
    """
    column, _ = _column(evaluations, asked.metric)
    metric = METRICS.get(column.partition("_")[2])
    higher = bool(metric and metric.higher)
    found = []
    for name in dict.fromkeys(row["method"] for row in evaluations):
        own = (row for row in evaluations if row["method"] == name)
        firsts = [
            next(
                (row for row in seed if _good(float(row[column]), value, higher)), None
            )
            for seed in by_point(own).values()
        ]
        there = [row for row in firsts if row is not None]
        took: dict[str, Any] = {"method": asked.labels.get(name, name)}
        took["seeds"] = f"{len(there)} of {len(firsts)}"
        for axis in ("rounds", "up", "both"):
            took[axis] = AXES[axis].of(there) if len(there) == len(firsts) else math.nan
        found.append(took)
    return sorted(found, key=lambda took: (math.isnan(took["up"]), took["up"]))


def _good(score: float, value: float, higher: bool) -> bool:
    return score >= value if higher else score <= value


def _column(rows: Sequence[Row], metric: str) -> tuple[str, str]:
    """Returns the column of a metric, which all rows have, and its name in words."""
    column, title = _named(rows[0], metric)
    for row in rows:
        if row.get(column, "") == "":
            msg = (
                f"Expected {column} in all rows, got none in those of {row['method']}: "
                "choose a metric that all have."
            )
            raise ValueError(msg)
    return column, title


def _named(row: Row, metric: str) -> tuple[str, str]:
    if not metric:
        by = score_of(row)
        return by.column, by.title
    metrics = (name for name in row if name.partition("_")[2] in METRICS)
    legal = [*metrics, *(name for name in LOSSES if name in row)]
    column = metric if metric in legal else f"test_{metric}"
    validate.one_of(tuple(legal), metric=column)
    return column, column.replace("_", " ")


def _axis(name: str, evaluations: Sequence[Row]) -> Axis:
    validate.one_of(tuple(AXES), x=name)
    axis = AXES[name]
    for row in evaluations:
        lacks = [column for column in axis.columns if row.get(column, "") == ""]
        if lacks:
            msg = f"Expected rows with {lacks[0]} for x={name}, got none of "
            msg += f"{row['method']}."
            raise ValueError(msg)
    return axis


def _draw_method(panels, axes: Sequence[Axis], places, column: str, said) -> None:
    """Draws the mean and the range of a method's seeds, evaluation by evaluation."""
    scores = [[float(row[column]) for row in place] for place in places]
    means = [statistics.fmean(values) for values in scores]
    low, high = [min(values) for values in scores], [max(v) for v in scores]
    for panel, axis in zip(panels, axes, strict=True):
        x = [axis.of(place) for place in places]
        # A single evaluation is a point, which no line shows.
        (line,) = panel.plot(x, means, marker="o" if len(x) == 1 else "", **said)
        colour = line.get_color()
        panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _scale(panel, axis: Axis) -> None:
    """Gives a panel its words, and bytes a log scale with a few ticks."""
    from matplotlib import ticker

    panel.set(xlabel=axis.label)
    if axis.columns == ("round",):
        panel.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    # A log scale of nothing, where all has diverged, is an error.
    if axis.log and math.isfinite(panel.dataLim.minposx):
        panel.set_xscale("log")
        low, high = panel.get_xlim()
        wide = math.log10(high / low) > 2
        # Within a decade matplotlib names all ticks, over one another.
        subs = (1.0,) if wide else (1.0, 3.0)
        panel.xaxis.set_major_locator(ticker.LogLocator(subs=subs, numticks=6))
        panel.xaxis.set_major_formatter(ticker.EngFormatter(unit="B"))
        panel.xaxis.set_minor_formatter(ticker.NullFormatter())
