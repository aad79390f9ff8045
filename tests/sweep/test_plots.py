"""Pictures of results: their axes, lines and words, and what it took to a score."""

import itertools

import pytest

from fl_sketch.core import files
from fl_sketch.sweep import grid, plots

KEYS = ("method", "point", "round", "test_accuracy", "test_rmse", "bytes_up_total",
        "bytes_down_total", "epsilon")  # fmt: skip
LINES = """
100x 0 10 0.5 3 1e6 2e6 1
100x 0 20 0.8 2 2e6 4e6 2
100x 1 10 0.7 3 1e6 2e6 1
100x 1 20 0.9 1 2e6 4e6 2
FedAvg 0 10 0.8 1 1e8 2e8 1
FedAvg 0 20 0.7 4 2e8 4e8 2
"""
ROWS = [dict(zip(KEYS, line.split(), strict=True)) for line in LINES.split("\n")[1:-1]]


@pytest.fixture
def figures(monkeypatch):
    """Returns a list of all figures that were drawn, of which none is written."""
    drawn = []
    monkeypatch.setattr(
        files, "write_figure", lambda path, figure: drawn.append(figure)
    )
    return drawn


def row(**changes):
    names = ("round", "train_loss", "test_loss", "test_accuracy")
    names += ("bytes_up_total", "bytes_down_total")
    return dict.fromkeys(names, 1) | changes


def results(folder, file, *rows):
    """Writes rows to a file in a folder, which is made; returns the folder's path."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_rows(folder / file, rows)
    return str(folder)


@pytest.fixture
def folders(tmp_path):
    points = [
        {"point": 0, "client.rate": 0.1, "algorithm": "safl", "seed": 0},
        {"point": 1, "client.rate": 0.1, "algorithm": "safl", "seed": 1},
        {"point": 2, "client.rate": 0.1, "algorithm": "fedavg", "seed": 0},
    ]
    methods = [row(method="SAFL", point=point) for point in range(2)]
    return [
        results(tmp_path / "run", "metrics.csv", row(round=1), row(round=2)),
        results(tmp_path / "swept", "sweep.csv", *(p | row() for p in points)),
        results(tmp_path / "compared", "comparison.csv", *methods),
    ]


def test_each_axis_is_what_it_says(figures):
    plots.draw(ROWS, "x.png", [*plots.ABSCISSAS])
    panels, ends = figures[0].axes, [10, 1e6, 2e6, 3e6, 1]
    for panel, x, end in zip(panels, plots.ABSCISSAS, ends, strict=True):
        line, band = panel.get_lines()[0], panel.collections[0]
        assert panel.get_xlabel() == plots.ABSCISSAS[x][0]
        assert [*line.get_xdata()] == [end, 2 * end]
        assert line.get_ydata() == pytest.approx([0.6, 0.85])  # means of two seeds
        assert sorted({*band.get_paths()[0].vertices[:, 1]}) == [0.5, 0.7, 0.8, 0.9]
    assert panels[0].get_ylabel() == "test accuracy"


def test_words_are_those_that_are_asked_for(figures):
    plots.draw(ROWS, "x.png", ["up"], "rmse", {"100x": "SAFL, 1/100"}, "Digits")
    (figure,) = figures
    (panel,), (legend,) = figure.axes, figure.legends
    assert panel.get_ylabel() == "test rmse" and figure.get_suptitle() == "Digits"
    assert [text.get_text() for text in legend.get_texts()] == ["SAFL, 1/100", "FedAvg"]
    assert "up to 2 seeds" in legend.get_title().get_text()
    figure.canvas.draw()
    low, high = panel.get_xlim()
    labels = [
        one for one in panel.get_xticklabels() if low <= one.get_position()[0] <= high
    ]
    ticks = [label.get_text() for label in labels if label.get_text()]
    assert 2 <= len(ticks) <= 6 and all(text.endswith("MB") for text in ticks), ticks


@pytest.mark.parametrize(
    ("form", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_a_picture_has_the_form_of_its_ending_and_the_same_bytes(
    tmp_path, form, begins
):
    both = []
    for name in ("a", "b"):
        plots.draw(ROWS, tmp_path / f"{name}.{form}", ["up"])
        both.append((tmp_path / f"{name}.{form}").read_bytes())
    assert both[0] == both[1] and both[0].startswith(begins)


def test_a_picture_of_nothing_but_divergence_is_drawn(figures):
    plots.draw([row(method="far", point=0, test_accuracy="nan")], "x.png")
    assert len(figures) == 1


@pytest.mark.usefixtures("figures")
def test_runs_settings_and_methods_have_a_line_each(folders):
    safl, fedavg = "algorithm=safl", "algorithm=fedavg"
    names = ["run", f"swept client.rate=0.1 {safl}", f"swept client.rate=0.1 {fedavg}"]
    assert plots.plot(folders, "p.png") == [*names, "SAFL"]
    assert plots.plot(folders, "p.png", [safl, "SAF"]) == [names[1], "SAFL"]
    with pytest.raises(ValueError, match="one of run, .*, got .*nothing"):
        plots.plot(folders, "p.png", ["nothing"])


def test_labels_may_have_an_equals_sign_on_both_sides(folders, figures):
    name = "swept client.rate=0.1 algorithm=safl"
    labels = [f"{name}=rate = 0.1", "run=SAFL=1/100"]
    plots.plot(folders, "p.png", labels=labels)
    words = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert words[:2] == ["SAFL=1/100", "rate = 0.1"]
    for wrong in ("rum=x", "run"):
        with pytest.raises(ValueError, match=f"run.*got --label={wrong}"):
            plots.plot(folders, "p.png", labels=[wrong])


@pytest.mark.usefixtures("figures")
def test_lines_of_one_name_are_told_apart(tmp_path):
    one, two = (results(tmp_path / name / "run", "metrics.csv", row()) for name in "ab")
    assert plots.plot([one, two], "p.png") == [one, two]
    one, two = (
        results(tmp_path / name, "comparison.csv", row(method="SAFL", point=0))
        for name in ("one", "two")
    )
    assert plots.plot([one, two], "p.png") == ["SAFL", "two: SAFL"]


def test_a_folder_that_is_given_twice_or_as_a_dot_is_one_line_by_its_name(
    tmp_path, monkeypatch
):
    folder = results(tmp_path / "mine", "metrics.csv", row(round=1), row(round=2))
    with open(tmp_path / "mine/metrics.csv", "a") as file:
        file.write("3,1,1")  # a row that is being written does not count
    monkeypatch.chdir(folder)
    rows = [(row["method"], row["round"]) for row in plots.read([".", folder])]
    assert rows == [("mine", "1"), ("mine", "2")]


@pytest.mark.usefixtures("figures")
def test_what_cannot_be_drawn_is_said_in_one_line(tmp_path, folders):
    short = results(tmp_path / "short", "metrics.csv", {"round": 1})
    lost = results(tmp_path / "lost", "metrics.csv", row(test_accuracy="nan"))
    unlike = results(tmp_path / "unlike", "metrics.csv", row(test_accuracy=""))
    cases = [
        ([str(tmp_path)], {}, "comparison.csv, sweep.csv, metrics.csv"),
        ([short], {}, "bytes_up_total"),
        ([folders[0], unlike], {}, "test_accuracy in all rows, .* of unlike"),
        ([lost], {}, "numbers in test_accuracy"),
        (folders, {"metric": "f1"}, "'test_accuracy'.*test_f1"),
        (folders, {"xs": ["bytes"]}, "'rounds', 'up'.*x='bytes'"),
        (folders, {"xs": ["epsilon"]}, "epsilon in all rows"),
        (folders, {"path": "p.gif"}, "must end in .png, .pdf, .svg, got p.gif"),
    ]
    for workdirs, options, words in cases:
        options = {"path": "p.png", **options}
        with pytest.raises(ValueError, match=words) as caught:
            plots.plot(workdirs, **options)
        assert "\n" not in str(caught.value)


RATE, LOST = grid.Axis("client.rate", (0.1, 0.2)), grid.Axis("client.rate", (0.2,))
ROW_COUNTS, SEEDS = grid.Axis("sketch.rows", (1, 3)), grid.Axis("seed", (0, 1))
WORDS = grid.Axis("algorithm", ("safl", "fedavg"))


@pytest.mark.parametrize(
    ("axes", "cells"),
    [
        ((RATE, ROW_COUNTS, SEEDS), {(0, 0): [0.1, 0.2], (0, 1): [0.3, 0.4]}),
        ((RATE, grid.Axis("sketch.rows", (1,)), SEEDS), {(0,): [0.1, 0.2]}),
        ((SEEDS,), {(0,): [0.1], (1,): [0.2]}),
        ((WORDS,), {(0,): [0.1], (1,): [0.1]}),
        ((grid.Axis("client.rate", (0.1,)),), {(0,): [0.1]}),
        ((LOST,), {}),  # all diverged
        ((LOST, ROW_COUNTS), {}),
    ],
)
def test_a_heatmap_shows_one_axis_or_two(figures, axes, cells):
    rows = []
    for values in itertools.product(*(axis.values for axis in axes)):
        point = dict(zip((axis.key for axis in axes), values, strict=True))
        lost = point.get("client.rate") == 0.2
        value = 0.1 * (point.get("sketch.rows", 1) + point.get("seed", 0))
        value = float("nan") if lost else value
        diverged = {"diverged": "4" if lost else ""}
        rows.append(
            {"point": len(rows), **point, **row(test_accuracy=value), **diverged}
        )
    drawn = [axis for axis in axes if len(axis.values) > 1 and axis.key != "seed"]
    found = plots.cells_of(drawn or axes, axes, rows)
    for place, values in cells.items():
        assert sorted(found[place]) == pytest.approx(values)
    plots.heatmap(axes, rows, "map.png")
    assert len(figures) == 1
