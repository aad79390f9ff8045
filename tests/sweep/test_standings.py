"""The table of a comparison says no more than its runs do."""

import math

import pytest

from fl_sketch.sweep import standings

pytestmark = pytest.mark.fast
ROW = {
    "method": "safl", "accuracy": 0.98, "half_width": 0.01, "seeds": 2, "diverged": 0,
    "bytes_up": 22_080_000, "bytes_down": 12_345_000_000, "epsilon": "", "chosen": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("accuracy", "half_width", "cell"),
    [
        (0.98, 0.0199, "98.00 +- 1.99"),
        (0.98, 0.1271, "98.00"),  # beyond 100
        (0.06, 0.0601, "6.00"),  # below 0
        (0.98, math.nan, "98.00"),  # of one seed
        (math.nan, math.nan, "diverged"),
    ],
)
def test_no_interval_leaves_what_an_accuracy_can_be(accuracy, half_width, cell):
    row = ROW | {"accuracy": accuracy, "half_width": half_width}
    head, _, line = standings.table([row])
    assert "test accuracy, +- 95 % interval" in head
    assert line == f"| safl | {cell} | - | 22.08 | 12.35 GB |  |"
    said = f"test accuracy {cell} over 2 seeds; 22.08 MB up, 12.35 GB down"
    assert standings.said(row) == said
