"""Tables of many runs: points of a sweep, methods of a comparison, runs side by side.

Rows are evaluations, possibly from csv files, with strings as numbers.
"""

import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fl_sketch.core import files
from fl_sketch.core import shown as byte_counts
from fl_sketch.models import metrics
from fl_sketch.models.metrics import CHOSEN, REPORTED, Score, score_of
from fl_sketch.privacy.guarantee import mark, rounded_up
from fl_sketch.sweep.grid import Axis, typed
from fl_sketch.workdir import rows as names
from fl_sketch.workdir import tables
from fl_sketch.workdir.tables import half_width, named, shown

Row = dict[str, Any]
Rows = Iterable[Mapping[str, Any]]
UP, DOWN = "bytes_up_total", "bytes_down_total"
RUN = "{:<24} {:>13} {:>10} {:>12} {:>13} {:>9}"  # a line of `side_by_side`


def by_point(rows: Rows) -> dict[int, list[Row]]:
    """Returns the evaluations of each point of a sweep, in order."""
    points: dict[int, list[Row]] = {}
    for row in rows:
        points.setdefault(int(row["point"]), []).append({**row})
    return points


def by_method(rows: Rows) -> dict[str, list[list[Row]]]:
    """Returns the evaluations of each seed of each method."""
    methods: dict[str, list] = {}
    for row in rows:
        methods.setdefault(row["method"], []).append(row)
    return {name: list(by_point(own).values()) for name, own in methods.items()}


def mean_score(
    rows: Sequence[Mapping[str, Any]], last: int, parts: Sequence[str] = REPORTED
) -> float:
    """Returns the mean score of a run's `last` evaluations; NaN if the run diverged."""
    score = score_of(rows[0], parts)
    return statistics.fmean(score.of(row) for row in rows[-last:])


def ranked(rows: Rows, axes: Sequence[Axis]) -> list[Row]:
    """Returns the last row of every point, the best first, diverged points last."""
    last = {int(row["point"]): row for row in rows}
    points = [_typed(row, axes) for row in last.values()]
    score = score_of(points[0], CHOSEN)

    def order(row: Row) -> tuple:
        loss = math.inf if row["diverged"] else row[f"{score.part}_loss"]
        return (*_best_first(score, score.of(row)), loss)

    return sorted(points, key=order)


def over_seeds(points: Sequence[Row], axes: Sequence[Axis]) -> list[Row]:
    """Returns mean, deviation and interval over seeds of each setting, best first.

    A setting of the points that `ranked` returned has no mean if a seed diverged.
    """
    keys = [axis.key for axis in axes if axis.key != "seed"]
    chosen, reported = score_of(points[0], CHOSEN), score_of(points[0])
    settings: dict[tuple, list[Row]] = {}
    for row in sorted(points, key=lambda row: row["point"]):
        settings.setdefault(tuple(row[key] for key in keys), []).append(row)
    means = []
    for values, rows in settings.items():
        scores = [reported.of(row) for row in rows]
        choice = statistics.fmean(map(chosen.of, rows))
        spread = len(scores) > 1 and all(map(math.isfinite, scores))
        setting = {
            **dict(zip(keys, values, strict=True)),
            "mean": sum(scores) / len(scores),
            "deviation": statistics.stdev(scores) if spread else math.nan,
            "half_width": half_width(scores),
            "seeds": len(scores),
            **({chosen.column: choice} if chosen != reported else {}),
            "diverged": sum(not math.isfinite(score) for score in scores),
        }
        means.append((_best_first(chosen, choice), setting))
    return [setting for _, setting in sorted(means, key=lambda mean: mean[0])]


def seeds_swept(axes: Sequence[Axis]) -> bool:
    """Returns whether several seeds are swept."""
    return any(axis.key == "seed" and len(axis.values) > 1 for axis in axes)


def sweep_table(
    points: Sequence[Row], axes: Sequence[Axis], *, printed: bool = False
) -> list[list[str]]:
    """Returns the cells of sweep.md: settings, best first, with means over seeds.

    Without several seeds, and if it is to be `printed`, it has a row for every point.
    The score by which points are chosen is there if another one is reported.
    """
    seeds = seeds_swept(axes) and not printed
    chosen, score = score_of(points[0], CHOSEN), score_of(points[0])
    choice = [chosen] * (chosen != score)
    keys = [axis.key for axis in axes if not (seeds and axis.key == "seed")]
    titles = [*keys, *(other.head for other in choice), score.head]
    titles[-1] += ", +- deviation over seeds" * seeds
    cells = [titles + ["test loss", "MB up"] * printed]
    for row in over_seeds(points, axes) if seeds else points:
        line = [shown(row[key]) for key in keys]
        line += [_number(other, other.of(row)) for other in choice]
        if row["diverged"]:
            where = [f"in round {row['diverged']}", ""]
            cells.append([*line, "diverged", *where * printed])
            continue
        line.append(_number(score, row["mean" if seeds else score.column]))
        if seeds:
            line[-1] += f" +- {_number(score, row['deviation'])}"
        if printed:
            line += [f"{row['test_loss']:.4f}", byte_counts.megabytes(row[UP])]
        cells.append(line)
    return cells


def write_sweep(
    folder: pathlib.Path, rows: Rows, axes: Sequence[Axis], notes: Sequence[str]
) -> list[str]:
    """Writes sweep.md and ranking.csv; returns the lines to print.

    The table ends with `notes`, on the privacy that all points spent together.
    """
    points = ranked(rows, axes)
    table = sweep_table(points, axes)
    tables.write(folder, "sweep", table, notes)
    ranking, private = points, any(row.get("epsilon") for row in points)
    lines = tables.aligned(sweep_table(points, axes, printed=True))
    if seeds_swept(axes):
        ranking = over_seeds(points, axes)
        lines += tables.aligned(table)
    files.write_rows(names.place(folder, private) / "ranking.csv", ranking)
    return [*lines, *notes]


def _typed(row: Mapping[str, Any], axes: Sequence[Axis]) -> Row:
    """Returns the columns of a plain row for summaries and tables, as numbers."""
    likes = {axis.key: axis.values[0] for axis in axes}
    likes |= dict.fromkeys(("point", "round", UP, DOWN), 0) | {"train_loss": 0.0}
    values = {key: typed(row[key], like) for key, like in likes.items()}
    values |= metrics.measured(row)
    if row.get("epsilon"):
        values |= {"epsilon": float(row["epsilon"]), "delta": float(row["delta"])}
        values["randomness"] = row["randomness"]
    return values | {"diverged": int(row["diverged"]) if row["diverged"] else None}


def _best_first(score: Score, value: float) -> tuple[bool, float]:
    """Returns a key to sort values of a score by: the best first, and NaN last."""
    missing = math.isnan(value)
    return missing, 0.0 if missing else -score.worth(value)


def _number(score: Score, value: float) -> str:
    return f"{score.factor * value:.{2 if score.factor > 1 else 4}f}"


def standings_row(method: str, chosen: Row, rows: Rows, last: int) -> Row:
    """Returns the row of a `method` in standings.csv.

    It was tuned, and the `chosen` keys were the best. `rows` are all evaluations of all
    seeds, of which the `last` ones are in the mean of a seed.
    """
    seeds = list(by_point(rows).values())
    scores = [mean_score(seed, last) for seed in seeds]
    ends = [seed[-1] for seed in seeds]

    def mean(name: str) -> float:
        return statistics.fmean(float(end[name]) for end in ends)

    return {
        "method": method,
        score_of(ends[0]).name: statistics.fmean(scores),
        "half_width": half_width(scores),
        "train_loss": mean("train_loss"),
        "seeds": len(seeds),
        "diverged": sum(not math.isfinite(score) for score in scores),
        "bytes_up": mean(UP),
        "bytes_down": mean(DOWN),
        "rounds": int(ends[0]["round"]),
        **epsilon_of(ends),
        "chosen": named(chosen, " "),
    }


def epsilon_of(ends: Sequence[Mapping[str, Any]]) -> Row:
    """Returns the largest epsilon of runs, of which `ends` are the last rows.

    Cells are empty without privacy. The epsilon of examples depends on how the seed
    splits them among clients.
    """
    spent = [float(end["epsilon"]) for end in ends if end.get("epsilon")]
    if not spent:
        return dict.fromkeys(("epsilon", "delta", "randomness"), "")
    rest = {name: ends[0][name] for name in ("delta", "randomness")}
    return {"epsilon": max(spent), **rest}


def standings_table(rows: Sequence[Row]) -> list[list[str]]:
    """Returns the cells of standings.md, of the rows of `standings_row`."""
    private = any(row["epsilon"] for row in rows)
    hidden = " (simulator only)" * private  # exact bytes tell who took part
    score = _score(rows[0])
    head = ["method", f"{score.head}, +- 95 % interval"]
    paired = any("difference" in row for row in rows)
    head += [f"minus {rows[0]['method']}, seed by seed"] * paired
    head += [f"{name}{hidden}" for name in ("at equal MB up", "MB up", "MB down")]
    cells = [[*head, *["epsilon of a run"] * private, "chosen"]]
    for row in rows:
        equal = row.get(f"{score.name}_at_budget", math.nan)
        mean, apart = row[score.name], row.get("difference", math.nan)
        line = [row["method"], _interval(score, mean, row["half_width"], "diverged")]
        half = row.get("difference_half_width", math.nan)
        line += [_interval(score, apart, half, "-")] * paired
        line.append("-" if math.isnan(equal) else f"{score.factor * equal:.2f}")
        for name in ("bytes_up", "bytes_down"):
            line.append(f"{float(f'{row[name] / 1e6:.4g}'):.15g}")  # four digits
        if private and row["epsilon"]:
            epsilon = rounded_up(float(row["epsilon"]))
            line.append(f"{epsilon}{mark(row['randomness'])}")
        elif private:
            line.append("none")
        cells.append([*line, row["chosen"]])
    return cells


def write_standings(
    folder: pathlib.Path,
    rows: Sequence[Row],
    evaluations: Rows,
    last: int,
    notes: Sequence[str] = (),
) -> None:
    """Writes comparison.csv and the standings, and adds two scores to rows.

    The difference to the first method is a mean over seeds that both have. Runs of one
    seed have the same clients and batches, so differences vary less. The score at equal
    bytes is of the last evaluations within what the cheapest method sends, with the
    seed that sends most. It is NaN if a seed has no evaluation within that.

    Args:
      folder: the folder of the comparison.
      rows: the rows of `standings_row`, with as many `last` ones in the mean of a seed.
      evaluations: all evaluations that are reported.
      notes: lines on the privacy that all runs spent together.
    """
    methods = by_method(evaluations)
    sent = (  # a method that diverged at once sent nothing
        max(float(one[UP]) for seed in methods[row["method"]] for one in seed)
        for row in rows
        if math.isfinite(row[_score(row).name])
    )
    budget = min(sent, default=0.0)
    for row in rows:
        within = (
            [evaluation for evaluation in seed if float(evaluation[UP]) <= budget]
            for seed in methods[row["method"]]
        )
        row[f"{_score(row).name}_at_budget"] = statistics.fmean(
            mean_score(seed, last) if seed else math.nan for seed in within
        )
    by_seed = {
        name: {str(seed[0]["seed"]): mean_score(seed, last) for seed in seeds}
        for name, seeds in methods.items()
    }
    first = by_seed[rows[0]["method"]]
    for row in rows[1:]:
        own = by_seed[row["method"]]
        apart = [own[seed] - first[seed] for seed in own if seed in first]
        whole = apart and all(map(math.isfinite, apart))
        row["difference"] = statistics.fmean(apart) if whole else math.nan
        row["difference_half_width"] = half_width(apart)
    place = names.place(folder, any(row["epsilon"] for row in rows))
    files.write_rows(place / "comparison.csv", [*evaluations])
    files.write_rows(place / "standings.csv", rows)
    tables.write(folder, "standings", standings_table(rows), notes)


def _score(row: Row) -> Score:
    """Returns the score that a row of `standings_row` reports."""
    return Score("test", next(name for name in row if name in metrics.METRICS))


def _interval(score: Score, mean: float, half: float, missing: str) -> str:
    """Returns a mean with its interval, which a single seed has not."""
    if math.isnan(mean):
        return missing
    interval = f" +- {_number(score, half)}" if math.isfinite(half) else ""
    return f"{_number(score, mean)}{interval}"


def side_by_side(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a table of runs, its legend, and how the first run compares."""
    runs = summaries
    first, *others = runs
    score, up = score_of(runs[first]), "bytes_up_per_client_round"
    head = (score.title, "kB upload", "kB download", "MB upload all", "rounds/s")
    lines = [RUN.format("", *head)]
    for name, run in runs.items():
        kilobytes = (run[up] / 1e3, run["bytes_down_per_client_round"] / 1e3)
        cells = [f"{score.of(run):.4f}", *(f"{sent:.2f}" for sent in kilobytes)]
        cells += [byte_counts.megabytes(run[UP]), f"{run['rounds_per_second']:.0f}"]
        lines.append(RUN.format(name, *cells))
    asked = any("answered" in run for run in runs.values())
    each = "up per answer, down per request" if asked else "per client and round"
    lines.append(f"kB: {each}; MB upload all: all clients and rounds")
    for name in others:
        lost = score.of(runs[name]) - score.of(runs[first])
        lines.append(
            f"{first} uploaded {runs[name][up] / runs[first][up]:.1f} times fewer "
            f"bytes than {name}; its {score.title} is {abs(lost):.4f} "
            f"{'lower' if lost > 0 else 'higher'}."
        )
    return lines
