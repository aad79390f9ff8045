"""Tables of sweeps and comparisons say what their runs do."""

import itertools
import math
import re

import pytest

from fl_sketch.sweep import grid, tables
from fl_sketch.workdir.tables import half_width

pytestmark = pytest.mark.fast
RATE = grid.Axis("client.rate", (0.1, 0.2))
ROWS = grid.Axis("sketch.rows", (1, 3))
SEEDS = grid.Axis("seed", (0, 1))
LAST = {"round": "9", "train_loss": "1", "test_loss": "1", "test_accuracy": "0.5",
        "bytes_up_total": "1", "bytes_down_total": "2", "diverged": ""}  # fmt: skip
STANDING = {
    "method": "safl", "accuracy": 0.98, "half_width": 0.01, "seeds": 2, "diverged": 0,
    "bytes_up": 22_080_000, "bytes_down": 12_345_000_000, "epsilon": "", "chosen": "",
}  # fmt: skip


def rows_of(axes, accuracy):
    """Returns one row for each point, as sweep.csv has it: strings."""
    rows = []
    for values in itertools.product(*(axis.values for axis in axes)):
        point = dict(zip((axis.key for axis in axes), values, strict=True))
        value = accuracy(point)
        own = {"point": len(rows), **point, "test_accuracy": value}
        own |= {"test_loss": 1 - value, "diverged": 4 if math.isnan(value) else ""}
        rows.append(LAST | {key: str(value) for key, value in own.items()})
    return rows


def test_the_best_stand_first_and_what_diverged_last(tmp_path):
    axes = (RATE, ROWS, SEEDS)

    def accuracy(p):
        if p["client.rate"] == 0.2 and p["sketch.rows"] == 3 and p["seed"]:
            return math.nan
        return p["client.rate"] + 0.1 * p["sketch.rows"] + 0.02 * p["seed"]

    rows = rows_of(axes, accuracy)
    last = tables.ranked(rows, axes)
    assert [row["point"] for row in last] == [6, 3, 2, 5, 4, 1, 0, 7]
    means = tables.over_seeds(last, axes)
    assert [row["client.rate"] for row in means] == [0.1, 0.2, 0.1, 0.2]
    assert means[0]["mean"] == pytest.approx(0.41)
    assert means[0]["deviation"] == pytest.approx(0.02 / math.sqrt(2))
    assert means[3]["diverged"] == 1 and math.isnan(means[3]["mean"])
    lines = tables.write_sweep(tmp_path, rows, axes, ["all of it"])
    assert len(lines) == 1 + 8 + 1 + 4 + 1
    assert re.search(r"0\.2 +3 +1 +diverged in round 4 +$", lines[8])
    assert re.search(r"0\.1 +3 +41\.00 \+- 1\.41$", lines[10])
    assert (tmp_path / "sweep.md").read_text().splitlines() == [
        "| client.rate | sketch.rows | test accuracy (%), +- deviation over seeds |",
        "| --- | --- | --- |",
        "| 0.1 | 3 | 41.00 +- 1.41 |",
        "| 0.2 | 1 | 31.00 +- 1.41 |",
        "| 0.1 | 1 | 21.00 +- 1.41 |",
        "| 0.2 | 3 | diverged |",
        "",
        "all of it.",
    ]


def test_points_are_chosen_by_validation_and_never_by_the_test_set():
    axes = (grid.Axis("client.rate", (0.1, 0.2, 0.3)),)
    scores = [(0.5, 0.4, 0.9), (0.6, 0.5, 0.1), (0.5, 0.3, 0.8)]  # and losses
    rows = [
        LAST | {"point": n, "client.rate": axes[0].values[n], "test_loss": 1 - test}
        | {"validation_accuracy": own, "validation_loss": loss, "test_accuracy": test}
        for n, (own, loss, test) in enumerate(scores)
    ]  # fmt: skip
    points = tables.ranked(rows, axes)
    assert [row["point"] for row in points] == [1, 2, 0]
    head, best, *_ = tables.sweep_table(points, axes)
    assert head == ["client.rate", "validation accuracy (%)", "test accuracy (%)"]
    assert best == ["0.2", "60.00", "10.00"]


def test_less_of_an_error_is_better_over_seeds_too():
    axes = (RATE, SEEDS)
    rows = rows_of(axes, lambda p: 1.0)
    for row, error in zip(rows, [0.5, 0.5, 0.2, 0.3], strict=True):
        del row["test_accuracy"]
        row |= {"validation_rmse": error, "validation_loss": 1.0, "test_rmse": 0.2563}
    points = tables.ranked(rows, axes)
    head, best, other = tables.sweep_table(points, axes)
    assert head[1:] == ["validation rmse", "test rmse, +- deviation over seeds"]
    assert best == ["0.2", "0.2500", "0.2563 +- 0.0000"] and other[1] == "0.5000"
    printed = tables.sweep_table(points, axes, printed=True)
    assert printed[1][:4] == ["0.2", "0", "0.2000", "0.2563"]


def test_yes_and_no_come_back_from_a_file():
    row = LAST | {"point": "0", "sketch.stored": "False"}
    (point,) = tables.ranked([row], [grid.Axis("sketch.stored", (True, False))])
    assert point["sketch.stored"] is False


@pytest.mark.parametrize(
    ("accuracy", "half_width", "cell"),
    [
        (0.98, 0.0199, "98.00 +- 1.99"),
        (0.98, 0.1271, "98.00 +- 12.71"),  # beyond 100
        (0.06, 0.0601, "6.00 +- 6.01"),  # below 0
        (0.98, math.nan, "98.00"),  # of one seed
        (math.nan, math.nan, "diverged"),
    ],
)
def test_an_interval_is_shown_however_wide_it_is(accuracy, half_width, cell):
    row = STANDING | {"accuracy": accuracy, "half_width": half_width}
    head, line = tables.standings_table([row])
    assert head[1] == "test accuracy (%), +- 95 % interval"
    assert line == ["safl", cell, "-", "22.08", "12340", ""]


def test_a_metric_that_is_no_share_has_four_decimals():
    row = {name: one for name, one in STANDING.items() if name != "accuracy"}
    head, line = tables.standings_table([row | {"rmse": 0.0456, "half_width": 0.0003}])
    assert head[1] == "test rmse, +- 95 % interval"
    assert line[1] == "0.0456 +- 0.0003"


def test_an_interval_is_missing_for_a_single_seed_alone():
    def half(*accuracies):
        rows = [
            LAST | {"point": n, "test_accuracy": a} for n, a in enumerate(accuracies)
        ]
        return tables.standing("safl", {}, rows, 1)["half_width"]

    assert math.isnan(half(0.98)) and half(0.9, 1.0) == pytest.approx(0.6353, rel=1e-3)
    assert half_width([0.5, 0.5]) == 0 and math.isnan(half_width([0.5, math.nan]))


def test_a_difference_to_the_first_method_is_taken_seed_by_seed(tmp_path):
    """Seeds differ by more than methods: their difference has a narrow interval."""
    accuracies = {"first": (0.5, 0.7, 0.9), "ahead": (0.61, 0.8, 0.99)}
    rows = [
        LAST | {"method": name, "point": point, "seed": point, "test_accuracy": one}
        for name, each in accuracies.items()
        for point, one in enumerate(each)
    ]
    of = tables.by_method(rows)
    standings = [
        tables.standing(name, {}, [row for seed in of[name] for row in seed], 1)
        for name in of
    ]
    tables.write_standings(tmp_path, standings, rows, 1)
    head, first, ahead = tables.standings_table(standings)
    assert head[2] == "minus first, seed by seed"
    assert (first[2], ahead[2]) == ("-", "10.00 +- 2.48")
    assert ahead[1] == "80.00 +- 47.20"
    assert "difference" in (tmp_path / "standings.csv").read_text().splitlines()[0]


def test_methods_without_a_common_seed_have_no_difference(tmp_path):
    rows = [
        LAST | {"method": name, "point": 0, "seed": seed}
        for seed, name in enumerate(("first", "other"))
    ]
    standings = [tables.standing(row["method"], {}, [row], 1) for row in rows]
    tables.write_standings(tmp_path, standings, rows, 1)
    assert tables.standings_table(standings)[2][2] == "-"


def test_a_legend_says_of_what_the_bytes_are_a_mean():
    run = {"test_accuracy": 0.5, "test_loss": 1.0, "rounds_per_second": 1.0,
           "bytes_up_total": 10, "bytes_up_per_client_round": 1.0,
           "bytes_down_per_client_round": 1.0}  # fmt: skip
    some = {"a": run, "b": {**run, "answered": 3}}
    assert any(
        "kB: per client and round;" in one for one in tables.side_by_side({"a": run})
    )
    lines = tables.side_by_side(some)
    assert any("kB: up per answer, down per request;" in one for one in lines)
