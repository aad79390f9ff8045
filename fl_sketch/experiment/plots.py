"""One picture of several runs, sweeps and comparisons that are done."""

import csv
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fl_sketch.experiment import standings

FILES = ("comparison.csv", "sweep.csv", "metrics.csv")


def plot(workdirs: Sequence[str], path: str) -> list[str]:
    """Draws accuracy against rounds and bytes; returns the names of the lines.

    A run has a line, a sweep one for each point and a comparison one for each method;
    those that differ by their seeds alone share one.

    Raises:
      ValueError: for a folder that has none of these.
    """
    evaluations = [row for workdir in workdirs for row in evaluations_of(workdir)]
    standings.draw(evaluations, path)
    return list(dict.fromkeys(row["method"] for row in evaluations))


def evaluations_of(workdir: str) -> Iterator[dict[str, Any]]:
    """Yields the evaluations of a folder, each with a method and a point."""
    folder = pathlib.Path(workdir)
    found = next((name for name in FILES if (folder / name).is_file()), None)
    if found is None:
        msg = f"Expected a folder with one of {', '.join(FILES)}, got {workdir}."
        raise ValueError(msg)
    with open(folder / found, newline="") as file:
        rows = list(csv.DictReader(file))
    finished = [row for row in rows if row["test_accuracy"]]
    for row in finished:
        if found == "comparison.csv":
            yield row
        elif found == "metrics.csv":
            yield {"method": folder.name, "point": 0, **row}
        else:
            yield {"method": " ".join((folder.name, *_point_of(row))), **row}


def _point_of(row: dict[str, str]) -> Iterable[str]:
    """Returns the keys that were swept, but for the seed."""
    return (f"{key}={value}" for key, value in row.items() if "." in key)
