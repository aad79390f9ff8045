"""What the gaps of a laboratory go by: powers of b, d and the intrinsic dimension."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]
SIZES = {"b": "b", "d": "d", "I": "intrinsic_dimension"}
# Products of powers, and which of them share one power: b / I has one, b and I two.
FORMS = {
    "b": ({"b": 1},),
    "b / d": ({"b": 1, "d": -1},),
    "b / I": ({"b": 1, "I": -1},),
    "b and d": ({"b": 1}, {"d": 1}),
    "b and I": ({"b": 1}, {"I": 1}),
}


def fits(gaps: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Returns how much of the gaps each product of powers explains, a row for each.

    Least squares on logarithms, over the sketches of the first server, each pair of d
    and b once; `explained` is the part of the variance that is, R^2. All models are
    counted, and again without the smallest ones as long as three sizes are left, so
    that a form which holds from some size on is seen to.

    Args:
      gaps: the rows of gaps.csv.

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


def _of(gaps: Sequence[Mapping[str, Any]], name: str) -> Iterator[Row]:
    """Yields how well each form explains one kind of gap, where it can be told."""
    rows = [row for row in gaps if float(row[name]) > 0]
    logs = {of: _logarithms(rows, key) for of, key in SIZES.items()}
    for form, factors in FORMS.items():
        columns = [sum(n * logs[of] for of, n in own.items()) for own in factors]
        if len(rows) <= len(columns) + 1 or not np.isfinite(columns).all():
            continue
        powers, explained = _least_squares(columns, _logarithms(rows, name))
        yield {
            "against": form,
            "gaps": len(rows),
            "power": powers[0],
            "second_power": powers[1] if len(columns) > 1 else "",
            "explained": explained,
        }


def _logarithms(rows: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    return np.log([float(row[name]) for row in rows])


def _least_squares(columns, logs: np.ndarray) -> tuple[list[float], float]:
    """Returns the powers of the `columns`, and the part of variance they explain."""
    matrix = np.stack([*columns, np.ones_like(logs)], axis=1)
    found, *_ = np.linalg.lstsq(matrix, logs, rcond=None)
    rest = logs - matrix @ found
    return [float(power) for power in found[:-1]], float(1 - rest.var() / logs.var())
