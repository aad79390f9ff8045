"""One picture of several runs, sweeps and comparisons that are done."""

import math
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fl_sketch.core import files, validate
from fl_sketch.sweep import pictures
from fl_sketch.sweep.pictures import Asked
from fl_sketch.workdir import tables
from fl_sketch.workdir.rows import all_plain

DRAWN = ("round", "bytes_up_total", "bytes_down_total")
FILES = ("comparison.csv", "sweep.csv", "metrics.csv")


def plot(
    workdirs: Sequence[str],
    path: str,
    only: Sequence[str] = (),
    asked: Asked = Asked(),  # noqa: B008 - immutable
) -> list[str]:
    """Draws a score against rounds, bytes and more; returns the names of the lines.

    A run has a line, a sweep one for each point and a comparison one for each method;
    those that differ by their seeds alone share one.

    Args:
      workdirs: the folders; those of one name are told apart by their paths.
      path: the picture, which ends in .png, .pdf or .svg.
      only: texts, of which a line's name must have one; empty: all lines are drawn.
      asked: what the picture is to show.

    Raises:
      ValueError: for a folder that has none of these, or where no line is left.
    """
    require_picture(path)
    kept = chosen(workdirs, only)
    draw(kept, path, asked)
    return names_of(kept)


def draw(rows: Sequence[dict[str, Any]], path: str, asked: Asked) -> None:
    """Draws evaluations, the `rows`, as they are `asked` for, to the file `path`.

    Raises:
      ValueError: for rows of which nothing would be seen.
    """
    pictures.require_numbers(rows, asked)
    pictures.draw(rows, path, asked)


def require_picture(path: str) -> None:
    """Raises unless a picture can be written to the file `path`, by its ending."""
    files.writable_file(path)
    endings = tuple(f".{form}" for form in files.PICTURES)
    validate.one_of(endings, **{"the ending of out": pathlib.Path(path).suffix})


def chosen(workdirs: Sequence[str], only: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Returns the evaluations of folders, each with the name of its line.

    Args:
      workdirs: the folders; those of one name are told apart by their paths.
      only: texts, of which a line's name must have one; empty: all lines are chosen.

    Raises:
      ValueError: for a folder that has none, or where no line is left.
    """
    workdirs = list({pathlib.Path(one).resolve(): one for one in workdirs}.values())
    short = [pathlib.Path(workdir).resolve().name for workdir in workdirs]
    evaluations: list[dict[str, Any]] = []
    taken: set[str] = set()
    for workdir, name in zip(workdirs, short, strict=True):
        name = name if short.count(name) == 1 else str(workdir)
        found = list(evaluations_of(workdir, name))
        if {row["method"] for row in found} & taken:  # of another comparison
            found = [row | {"method": f"{name}: {row['method']}"} for row in found]
        taken |= {row["method"] for row in found}
        evaluations += found
    names = names_of(evaluations)
    kept = [name for name in names if not only or any(text in name for text in only)]
    if not kept:
        msg = f"Expected only to be part of one of {', '.join(names)}, got {only}."
        raise ValueError(msg)
    return [row for row in evaluations if row["method"] in kept]


def names_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the names of the lines of some evaluations, the `rows`."""
    return list(dict.fromkeys(row["method"] for row in rows))


def reached(rows: Sequence[dict[str, Any]], value: float, asked: Asked) -> list[str]:
    """Returns a table in markdown of what each line took to reach a score.

    Args:
      rows: the evaluations.
      value: the score.
      asked: what counts as score.
    """
    table = [["", "seeds", "rounds", "MB up", "MB up and down"]]
    for took in pictures.reached(rows, value, asked):
        numbers = (took["rounds"], took["up"] / 1e6, took["both"] / 1e6)
        cells = ["-" if math.isnan(one) else f"{one:.4g}" for one in numbers]
        table.append([took["method"], took["seeds"], *cells])
    return tables.markdown(table)


def labels_of(texts: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Returns the words for lines, by their names.

    Args:
      texts: texts "NAME=words", where both may have an = in them.
      names: the names of all lines.

    Raises:
      ValueError: for a text without =, or of a name that there is not.
    """
    labels = {}
    for text in texts:
        starts = [text[:place] for place, one in enumerate(text) if one == "="]
        if not starts:
            msg = f"Expected --label=NAME=text, got --label={text}."
            raise ValueError(msg)
        name = next((one for one in reversed(starts) if one in names), starts[0])
        validate.one_of(tuple(names), label=name)
        labels[name] = text[len(name) + 1 :]
    return labels


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
    rows = all_plain(files.read_rows(folder / found, whole=True))
    if not rows or not {*DRAWN} <= {*rows[0]}:
        msg = f"Expected rows with {', '.join(DRAWN)} in {folder / found}."
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
