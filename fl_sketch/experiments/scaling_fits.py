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
