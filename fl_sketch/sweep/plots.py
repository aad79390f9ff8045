"""One picture of several runs, sweeps and comparisons that are done."""

import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fl_sketch import files
from fl_sketch.report.rows import all_plain
from fl_sketch.sweep import standings

FILES = ("comparison.csv", "sweep.csv", "metrics.csv")


def plot(workdirs: Sequence[str], path: str, only: Sequence[str] = ()) -> list[str]:
    """Draws accuracy against rounds and bytes; returns the names of the lines.

    A run has a line, a sweep one for each point and a comparison one for each method;
    those that differ by their seeds alone share one.

    Args:
      workdirs: the folders; those of one name are told apart by their paths.
      path: the picture, a png file.
      only: texts, of which a line's name must have one; empty: all lines are drawn.

    Raises:
      ValueError: for a folder that has none of these, or where no line is left.
    """
    files.writable_file(path)
    short = [pathlib.Path(workdir).name for workdir in workdirs]
    evaluations = []
    for workdir, name in zip(workdirs, short, strict=True):
        name = name if short.count(name) == 1 else str(workdir)
        evaluations += evaluations_of(workdir, name)
    names = list(dict.fromkeys(row["method"] for row in evaluations))
    kept = [name for name in names if not only or any(text in name for text in only)]
    if not kept:
        msg = f"Expected only to be part of one of {', '.join(names)}, got {only}."
        raise ValueError(msg)
    standings.draw([row for row in evaluations if row["method"] in kept], path)
    return kept


def evaluations_of(workdir: str, name: str) -> Iterator[dict[str, Any]]:
    """Yields the evaluations of a folder, each with a method and a point.

    Args:
      workdir: the folder of a run, a sweep or a comparison.
      name: what the method of a run is called, and with its swept keys that of a
        sweep's point; the methods of a comparison have names of their own.

    Raises:
      ValueError: for a folder that has no such evaluations.
    """
    folder = pathlib.Path(workdir)
    found = next((file for file in FILES if (folder / file).is_file()), None)
    if found is None:
        msg = f"Expected a folder with one of {', '.join(FILES)}, got {workdir}."
        raise ValueError(msg)
    rows = all_plain(files.read_rows(folder / found))
    if not rows or not {*standings.DRAWN} <= {*rows[0]}:
        msg = f"Expected rows with {', '.join(standings.DRAWN)} in {folder / found}."
        raise ValueError(msg)
    for row in rows:
        if found == "comparison.csv":
            yield row
        elif found == "metrics.csv":
            yield {"method": name, "point": 0, **row}
        else:
            yield {"method": " ".join((name, *_point_of(row))), **row}


def _point_of(row: dict[str, str]) -> Iterable[str]:
    """Returns the keys that were swept, but for the seed: they follow the point."""
    names = list(row)
    keys = names[names.index("point") + 1 : names.index("round")]
    return (f"{key}={row[key]}" for key in keys if key != "seed")
