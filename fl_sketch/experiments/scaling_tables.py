"""What a laboratory's runs say: the gaps, what they go by, and three pictures."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fl_sketch.core import files
from fl_sketch.workdir.tables import half_width

Row = dict[str, Any]
Rows = Sequence[Row]
LOST = "accuracy lost to the sketch, in points"
SIZES = {"b": "b", "d": "d", "I": "intrinsic_dimension"}
# Products of powers, and which of them share one power: b / I has one, b and I two.
FORMS = {
    "b": ({"b": 1},),
    "b / d": ({"b": 1, "d": -1},),
    "b / I": ({"b": 1, "I": -1},),
    "b and d": ({"b": 1}, {"d": 1}),
    "b and I": ({"b": 1}, {"I": 1}),
}


def gaps(runs: Rows, spectra: Rows) -> list[Row]:
    """Returns what each sketch lost against the same server without one, by width.

    Gaps are means over seeds, in points of accuracy, each seed against itself, with
    half of Student's 95 % interval, and so is the training error with a sketch. The
    intrinsic dimension is the mean over the checkpoints of the first method that was
    looked at.
    """
    by = {(row["width"], row["method"], row["seed"]): row for row in runs}
    pairs: dict[tuple, list[tuple[Row, Row]]] = {}
    for (width, method, seed), row in by.items():
        twin = by.get((width, method.partition(",")[0], seed))
        if "," in method and twin:
            pairs.setdefault((width, method), []).append((row, twin))

    def numbers(rows: Rows, name: str) -> np.ndarray:
        return np.array([float(row[name]) for row in rows])

    table = []
    for (width, method), both in pairs.items():
        rows, twins = zip(*both, strict=True)
        b, dimension = int(rows[0]["b"]), _dimension(spectra, width)
        sizes = {"width": width, "method": method, "d": rows[0]["d"], "b": b}
        row = {**sizes, "seeds": len(rows)}
        accuracies, errors = (
            numbers(rows, "test_accuracy"),
            numbers(rows, "train_error"),
        )
        for name, interval, parts in (
            ("gap", "half_width", numbers(twins, "test_accuracy") - accuracies),
            ("train_gap", "train_half_width", errors - numbers(twins, "train_error")),
            ("train_error", "train_error_half_width", errors),
        ):
            points = 100 * parts
            row |= {name: float(points.mean()), interval: half_width(points.tolist())}
        ratios = {"intrinsic_dimension": dimension, "b_over_dimension": b / dimension}
        table.append(row | ratios)
    return table


def _dimension(spectra: Rows, width: int) -> float:
    """Returns the mean intrinsic dimension of a width; NaN if none was measured."""
    of_width = [row for row in spectra if row["width"] == width]
    first = [row for row in of_width if row["method"] == of_width[0]["method"]]
    return float(np.mean([float(r["intrinsic_dimension"]) for r in first] or [np.nan]))


def fits(gaps: Rows) -> list[Row]:
    """Returns how much of the gaps each product of powers explains, a row for each.

    Least squares on logarithms, over the sketches of the first server, each pair of d
    and b once; `explained` is the part of the variance that is, R^2. All models are
    counted, and again without the smallest ones as long as three sizes are left, so
    that a form which holds from some size on is seen to.

    Returns:
      Rows for the gaps of test accuracy and those of training error, from each size on;
      none for a form that has as many powers as there are gaps above zero.
    """
    first = gaps[0]["method"].partition(",")[0] if gaps else ""
    own = [row for row in gaps if row["method"].partition(",")[0] == first]
    once = list({(int(row["d"]), int(row["b"])): row for row in own}.values())
    sizes = sorted({int(row["d"]) for row in once})
    table = []
    for least in sizes[: max(1, len(sizes) - 2)]:
        counted = [row for row in once if int(row["d"]) >= least]
        for name in ("gap", "train_gap"):
            table += [
                {"of": name, "from_d": least, **row} for row in _of(counted, name)
            ]
    return table


def _of(gaps: Rows, name: str) -> Iterator[Row]:
    """Yields how well each form explains one kind of gap, if there are enough rows."""
    rows = [row for row in gaps if float(row[name]) > 0]

    def logarithms(column: str) -> np.ndarray:
        return np.log([float(row[column]) for row in rows])

    logs, target = {of: logarithms(key) for of, key in SIZES.items()}, logarithms(name)
    for form, factors in FORMS.items():
        columns = [sum(n * logs[of] for of, n in own.items()) for own in factors]
        if len(rows) <= len(columns) + 1 or not np.isfinite(columns).all():
            continue
        matrix = np.stack([*columns, np.ones_like(target)], axis=1)
        powers, *_ = np.linalg.lstsq(matrix, target, rcond=None)
        yield {
            "against": form,
            "gaps": len(rows),
            "power": float(powers[0]),
            "second_power": float(powers[1]) if len(columns) > 1 else "",
            "explained": float(1 - (target - matrix @ powers).var() / target.var()),
        }


def draw(runs: Rows, gaps: Rows, folder: pathlib.Path) -> None:
    """Draws accuracy.png, gap.png and gap_against_dimension.png.

    They have test accuracy against d, a line for each method of the first server; what
    sketches of a part of d lose, against d; and what all of the first server lose,
    against b over the intrinsic dimension.
    """
    first = runs[0]["method"].partition(",")[0]
    scores: dict[tuple, list[float]] = {}
    for row in runs:
        if row["method"].partition(",")[0] == first:
            seeds = scores.setdefault((row["method"], int(row["d"])), [])
            seeds.append(100 * float(row["test_accuracy"]))
    accuracies = [(*key, np.mean(v), half_width(v)) for key, v in scores.items()]
    d, y = "parameters d", "test accuracy, in percent"
    _draw(accuracies, folder / "accuracy.png", d, y)
    relative, by_dimension = [], []
    for row in gaps:
        lost = row["gap"], row["half_width"]
        if "/" in row["method"]:
            relative.append((row["method"], row["d"], *lost))
        if row["method"].startswith(f"{first},"):
            line = f"d = {int(row['d']):,}"
            by_dimension.append((line, row["b_over_dimension"], *lost))
    _draw(relative, folder / "gap.png", d, LOST)
    x = "numbers of a message over the intrinsic dimension"
    _draw(by_dimension, folder / "gap_against_dimension.png", x, LOST)


def _draw(points: Sequence[tuple], path: pathlib.Path, x: str, y: str) -> None:
    """Draws lines through (line, x, mean, half of its interval), x on a log scale."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    panel = figure.subplots()
    for number, name in enumerate(dict.fromkeys(point[0] for point in points)):
        places = np.array(sorted(p[1:] for p in points if p[0] == name), float).T
        places[2] = np.nan_to_num(places[2])
        mark = "osv^Dx+*<>"[number % 10]
        panel.errorbar(*places, fmt=f"{mark}-", capsize=3, label=name)
    panel.set(xscale="log", xlabel=x, ylabel=y)
    panel.legend(fontsize="small")
    files.write_figure(path, figure)
