"""Pictures of attacks: the reconstructed images, and PSNR against a key."""

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fl_sketch.audit.attack import Result
from fl_sketch.core import files
from fl_sketch.workdir import rows as tables
from fl_sketch.workdir.tables import named

MEASURED = "images"  # the first column of a row after the keys of its setting


def draw(results: Mapping[str, Result], path, most: int = 8) -> None:
    """Draws the true images above the reconstructions of every setting."""
    from matplotlib.figure import Figure  # takes a second to import

    true = next(iter(results.values())).true
    rows = {"true": true} | {name: result.found for name, result in results.items()}
    columns = min(most, len(true))
    figure = Figure(
        figsize=(1.1 * columns + 1.5, 1.15 * len(rows)), layout="constrained"
    )
    panels = figure.subplots(len(rows), columns, squeeze=False)
    for line, (name, images) in zip(panels, rows.items(), strict=True):
        for panel, image in zip(line, images, strict=False):
            panel.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=1)
            panel.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    files.write_figure(path, figure)


def rows_of(folders: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the rows of the attacks in `folders`, each with its folder's name."""
    rows = []
    for folder in folders:
        path = pathlib.Path(folder).resolve() / "attack.csv"
        if not path.is_file():
            msg = f"Expected beside to be the folder of an attack, got {folder}."
            raise ValueError(msg)
        for row in files.read_rows(path):
            rows.append({"folder": path.parent.name, **tables.values(row)})
    return rows


def draw_curves(
    rows: Sequence[Mapping[str, Any]],
    path,
    beside: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Draws PSNR against every key that takes several numbers, if there is one.

    A row of panels for each prior has a line for each attack and each setting of all
    other keys, with the interval of the mean, and a dashed one for each baseline.
    """
    from matplotlib.figure import Figure

    here = pathlib.Path(path).resolve().parent.name
    rows = [*beside, *({"folder": here, **row} for row in rows)]
    keys = dict.fromkeys(
        key for row in rows for key in itertools.takewhile(MEASURED.__ne__, row)
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
    for (prior, key), panel in zip(
        itertools.product(priors, drawn), panels.flat, strict=True
    ):
        own = sorted((r for r in rows if r["prior"] == prior), key=lambda r: r[key])
        lines, baselines = {}, {}
        for row in own:
            others = [k for k in swept if k not in (key, "prior") and k in row]
            name = named({other: row[other] for other in others})
            point = row[key], row["psnr_mean"], row["psnr_half_width"]
            lines.setdefault(name.removeprefix("folder="), []).append(point)
            baselines.setdefault(row["guess_mean"], row["folder"])
        for name, points in lines.items():
            panel.errorbar(*zip(*points, strict=True), label=name or None)
        for number, (psnr, folder) in enumerate(baselines.items()):
            which = f" in {folder}" if len(baselines) > 1 else ""
            style = ("--", ":", "-.")[number % 3]
            panel.axhline(psnr, ls=style, color="grey", label=f"a guess{which}")
        panel.set(xlabel=key, ylabel="PSNR")
        panel.set_title(f"prior={prior}" * (len(priors) > 1))
        if own[0][key] > 0:
            panel.set_xscale("log")
        panel.legend(fontsize="small")
    files.write_figure(path, figure)
