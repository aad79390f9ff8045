"""Pictures of attacks: the images that were found, and PSNR against a key."""

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fl_sketch.core import files
from fl_sketch.engine import own_columns
from fl_sketch.experiments.attack import Result
from fl_sketch.workdir.tables import named

FOLDER = "folder"  # of an attack, among the keys of its settings
NUMBERS = "images"  # the first column of a row after the keys of its setting


def draw(results: Mapping[str, Result], path, most: int = 8) -> None:
    """Draws the true images, and those that were found with every setting."""
    from matplotlib.figure import Figure  # takes a second to import

    first = next(iter(results.values()))
    columns = min(most, len(first.true))
    rows: Sequence[tuple[str, np.ndarray]] = [("true", first.true)]
    rows = [*rows, *((name, result.found) for name, result in results.items())]
    figure = Figure(
        figsize=(1.1 * columns + 1.5, 1.15 * len(rows)), layout="constrained"
    )
    panels = figure.subplots(len(rows), columns, squeeze=False)
    for line, (name, images) in zip(panels, rows, strict=True):
        for panel, image in zip(line, images, strict=False):
            panel.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=1)
            panel.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    files.write_figure(path, figure)


def rows_of(folders: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the rows of the attacks in `folders`, each with its folder's name.

    Raises:
      ValueError: for a folder without an attack.
    """
    rows = []
    for folder in folders:
        path = pathlib.Path(folder).resolve() / "attack.csv"
        if not path.is_file():
            msg = f"Expected beside to be the folder of an attack, got {folder}."
            raise ValueError(msg)
        for row in files.read_rows(path):
            rows.append({FOLDER: path.parent.name, **own_columns.values(row)})
    return rows


def draw_curves(
    rows: Sequence[Mapping[str, Any]],
    path,
    beside: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Draws PSNR against every key that takes several numbers, if there is one.

    A row of panels for each prior has a line for each attack and each setting of all
    other keys, with the interval of the mean.

    Args:
      rows: in each row the keys of a setting and its numbers, as in `attack.row`.
      path: the path of the picture, whose folder has the name of the attack.
      beside: rows of other attacks, made by `rows_of`.
    """
    from matplotlib.figure import Figure

    here = pathlib.Path(path).resolve().parent.name
    rows = [*beside, *({FOLDER: here, **row} for row in rows)]
    keys = dict.fromkeys(  # those of settings come before an attack's numbers
        key for row in rows for key in itertools.takewhile(NUMBERS.__ne__, row)
    )
    swept = [key for key in keys if len({row.get(key) for row in rows}) > 1]
    drawn = [
        key for key in swept if all(isinstance(r.get(key), int | float) for r in rows)
    ]
    if not drawn:
        return
    priors = list(dict.fromkeys(row["prior"] for row in rows))
    figure = Figure(figsize=(5 * len(drawn), 4 * len(priors)), layout="constrained")
    panels = figure.subplots(len(priors), len(drawn), squeeze=False, sharey=True)
    for line, prior in zip(panels, priors, strict=True):
        of_prior = [row for row in rows if row["prior"] == prior]
        for panel, key in zip(line, drawn, strict=True):
            others = [other for other in swept if other not in (key, "prior")]
            _draw_against(panel, of_prior, key, others)
            panel.set_title(f"prior={prior}" * (len(priors) > 1))
    files.write_figure(path, figure)


def _draw_against(panel, rows: Sequence[Mapping[str, Any]], key: str, others) -> None:
    """Draws a line for each setting of the `others` of the keys, against `key`."""
    lines: dict[str, list] = {}
    for row in sorted(rows, key=lambda row: row[key]):
        name = named({other: row[other] for other in others if other in row})
        point = row[key], row["psnr_mean"], row["psnr_half_width"]
        lines.setdefault(name.removeprefix(f"{FOLDER}="), []).append(point)
    for name, points in lines.items():
        panel.errorbar(*zip(*points, strict=True), label=name or None)
    panel.axhline(rows[0]["guess_mean"], ls="--", color="grey", label="a guess")
    panel.set(xlabel=key, ylabel="PSNR")
    if min(row[key] for row in rows) > 0:
        panel.set_xscale("log")
    panel.legend(fontsize="small")
