"""Tables of sweeps and comparisons say what their runs do."""

import itertools
import math

import pytest

from fl_sketch.sweep import grid, tables
from fl_sketch.workdir.tables import half_width

pytestmark = pytest.mark.fast
RATE = grid.Axis("client.rate", (0.1, 0.2))
ROWS = grid.Axis("sketch.rows", (1, 3))
SEEDS = grid.Axis("seed", (0, 1))
LAST = {"round": "9", "train_loss": "1", "test_loss": "1", "test_accuracy": "0.5",
        "bytes_up_total": "1", "bytes_down_total": "2", "diverged": ""}  # fmt: skip


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
    tables.write_sweep(tmp_path, rows, axes, ["all of it"])
    text = (tmp_path / "sweep.md").read_text()
    assert "| 0.1 | 3 | 41.00 +- 1.41 |" in text and "| 0.2 | 3 | diverged |" in text


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


def test_an_interval_is_missing_for_a_single_seed_alone():
    def half(*accuracies):
        rows = [
            LAST | {"point": n, "test_accuracy": a} for n, a in enumerate(accuracies)
        ]
        return tables.standings_row("safl", {}, rows, 1)["half_width"]

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
        tables.standings_row(name, {}, [row for seed in of[name] for row in seed], 1)
        for name in of
    ]
    tables.write_standings(tmp_path, standings, rows, 1)
    head, first, ahead = tables.standings_table(standings)
    assert head[2] == "minus first, seed by seed"
    assert (first[2], ahead[2]) == ("-", "10.00 +- 2.48")
    assert ahead[1] == "80.00 +- 47.20"
    assert "difference" in (tmp_path / "standings.csv").read_text().splitlines()[0]


def test_a_method_that_diverged_does_not_set_the_bytes_of_the_others(tmp_path):
    methods = {"good": {"test_accuracy": 0.5}, "lost": {"test_accuracy": math.nan}}
    rows = [
        LAST | {"method": name, "point": 0, "seed": 0} | own
        for name, own in methods.items()
    ]
    rows[1]["bytes_up_total"] = 0
    standings = [tables.standings_row(row["method"], {}, [row], 1) for row in rows]
    tables.write_standings(tmp_path, standings, rows, 1)
    assert standings[0]["accuracy_at_budget"] == 0.5
