"""What a sweep found: its points, best first, and their means over seeds."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fl_sketch.sweep import grid
from fl_sketch.sweep.grid import Axis, shown
from fl_sketch.sweep.standings import half_width
from fl_sketch.workdir import tables
from fl_sketch.workdir.rows import (
    CHOSEN,
    Score,
    all_plain,
    measured,
    megabytes,
    score_of,
)

Row = dict[str, Any]
WHOLE = ("point", "round", "bytes_up_total", "bytes_down_total")


def ranked(rows: Iterable[Mapping[str, Any]], axes: Sequence[Axis]) -> list[Row]:
    """Returns the last row of every point, best first, those that diverged last.

    Args:
      rows: the rows of sweep.csv; numbers may still be strings.
      axes: the axes of the grid.
    """
    last = {int(row["point"]): row for row in all_plain(rows)}
    typed = [_typed(row, axes) for row in last.values()]
    by = score_of(typed[0], CHOSEN)
    return sorted(typed, key=lambda row: (*_order(by, by.of(row)), _loss(by, row)))


def over_seeds(last: Sequence[Row], axes: Sequence[Axis]) -> list[Row]:
    """Returns mean, deviation and interval of the score over seeds, best first.

    A setting that diverged with any seed has no mean.

    Args:
      last: the rows that `ranked` returns.
      axes: the axes of the grid.
    """
    keys = [axis.key for axis in axes if axis.key != "seed"]
    by, said = score_of(last[0], CHOSEN), score_of(last[0])
    settings: dict[tuple, list[Row]] = {}
    for row in sorted(last, key=lambda row: row["point"]):
        settings.setdefault(tuple(row[key] for key in keys), []).append(row)

    def worth(values: tuple) -> tuple[bool, float]:
        return _order(by, statistics.fmean(map(by.of, settings[values])))

    return [
        _over(dict(zip(keys, values, strict=True)), settings[values], said)
        for values in sorted(settings, key=worth)
    ]


def _apart(last: Sequence[Row]) -> Score | None:
    """Returns the score by which points are chosen, if others are reported."""
    by = score_of(last[0], CHOSEN)
    return by if by != score_of(last[0]) else None


def _over(setting: Row, rows: Sequence[Row], said: Score) -> Row:
    """Returns a setting's row over seeds."""
    chosen = _apart(rows)
    own = [said.of(row) for row in rows]
    return {
        **setting,
        "mean": sum(own) / len(own),
        "deviation": statistics.stdev(own) if _finite(own) else math.nan,
        "half_width": half_width(own),
        "seeds": len(own),
        **({chosen.column: statistics.fmean(map(chosen.of, rows))} if chosen else {}),
        "diverged": sum(not math.isfinite(one) for one in own),
    }


def table(last: Sequence[Row], axes: Sequence[Axis]) -> list[str]:
    """Returns a line for each point, best first, and then one for each setting.

    The first line is a head. Settings come where several seeds were swept.

    Args:
      last: the rows that `ranked` returns.
      axes: the axes of the grid.
    """
    keys, said = [axis.key for axis in axes], score_of(last[0])
    chosen = _apart(last)
    first = f"{chosen.title:>20} " if chosen else ""

    def led(row: Row, rest: str) -> str:
        """Returns a line that begins with the score by which it was ranked."""
        return f"{chosen.of(row):>20.4f} {rest}" if chosen else rest

    head = f"{first}{said.title:>13} {'test loss':>10} {'MB up':>9}"
    lines = _aligned(keys, last, head, lambda row: led(row, _result(row, said)))
    if seeds_swept(axes):
        keys = [key for key in keys if key != "seed"]
        head = f"{first}{said.title}, +- deviation over seeds"
        means = over_seeds(last, axes)
        lines += _aligned(keys, means, head, lambda row: led(row, _mean(row)))
    return lines


def markdown(last: Sequence[Row], axes: Sequence[Axis]) -> list[str]:
    """Returns a table to paste: settings, best first, with the deviation over seeds.

    It says what the printed table says. Without several seeds it has every point.

    Args:
      last: the rows that `ranked` returns.
      axes: the axes of the grid.
    """
    swept, by = seeds_swept(axes), score_of(last[0])
    keys = [axis.key for axis in axes if not (swept and axis.key == "seed")]
    rows = over_seeds(last, axes) if swept else last
    head = by.title + swept * ", +- deviation over seeds"
    chosen, digits = _apart(last), 2 if by.factor > 1 else 4
    cells = [[*keys, *([chosen.title] if chosen else []), head]]
    for row in rows:
        said = f"{by.factor * row['mean' if swept else by.column]:.{digits}f}"
        if row["diverged"]:
            said = "diverged"
        elif swept:
            said += f" +- {by.factor * row['deviation']:.{digits}f}"
        first = [f"{chosen.factor * chosen.of(row):.{digits}f}"] if chosen else []
        cells.append([*_shown(row, keys), *first, said])
    return tables.markdown(cells)


def seeds_swept(axes: Sequence[Axis]) -> bool:
    """Returns whether the seed is among `axes`, with more than one value."""
    return any(axis.key == "seed" and len(axis.values) > 1 for axis in axes)


def named(values: Mapping[str, Any]) -> str:
    """Returns keys and their `values` in one line.

    >>> named({"client.rate": 0.1, "seed": 3})
    'client.rate=0.1, seed=3'
    """
    return ", ".join(f"{key}={shown(value)}" for key, value in values.items())


def _typed(row: Mapping[str, Any], axes: Sequence[Axis]) -> Row:
    likes = {axis.key: axis.values[0] for axis in axes}
    likes |= dict.fromkeys(WHOLE, 0) | {"train_loss": 0.0}
    typed = {key: grid.typed(row[key], like) for key, like in likes.items()}
    typed |= measured(row)
    if row.get("epsilon"):
        typed |= {"epsilon": float(row["epsilon"]), "delta": float(row["delta"])}
        typed["randomness"] = row["randomness"]
    return typed | {"diverged": int(row["diverged"]) if row["diverged"] else None}


def _loss(by: Score, row: Row) -> float:
    """Returns the loss on the data that the score is of."""
    return math.inf if row["diverged"] else row[f"{by.part}_loss"]


def _order(by: Score, value: float) -> tuple[bool, float]:
    missing = math.isnan(value)
    return missing, 0.0 if missing else -by.worth(value)


def _finite(values: Sequence[float]) -> bool:
    return len(values) > 1 and all(map(math.isfinite, values))


def _shown(row: Row, keys: Sequence[str]) -> list[str]:
    return [shown(row[key]) for key in keys]


def _aligned(
    keys: Sequence[str],
    rows: Sequence[Row],
    head: str,
    rest: Callable[[Row], str],
) -> list[str]:
    """Returns a head and a line for each row, in columns as wide as they must be."""
    cells = [list(keys), *(_shown(row, keys) for row in rows)]
    widths = [max(8, *map(len, column)) for column in zip(*cells, strict=True)]
    ends = [head, *map(rest, rows)]
    return [
        " ".join(["  ", *(f"{x:>{w}}" for x, w in zip(own, widths, strict=True)), end])
        for own, end in zip(cells, ends, strict=True)
    ]


def _result(row: Row, by: Score) -> str:
    if row["diverged"]:
        return f"diverged in round {row['diverged']}"
    sent = megabytes(row["bytes_up_total"])
    return f"{by.of(row):>13.4f} {row['test_loss']:>10.4f} {sent:>9}"


def _mean(row: Row) -> str:
    if row["diverged"]:
        return f"diverged with {row['diverged']} of {row['seeds']} seeds"
    return f"{row['mean']:>13.4f} +- {row['deviation']:.4f}"
