"""Pictures of results: their axes, lines and words, and what it took to a score."""

import pytest

from fl_sketch.core import files
from fl_sketch.sweep import plots
from tests.refusals import refused

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


@pytest.mark.usefixtures("figures")
def test_runs_settings_and_methods_have_a_line_each(folders):
    safl, fedavg = "algorithm=safl", "algorithm=fedavg"
    names = ["run", f"swept client.rate=0.1 {safl}", f"swept client.rate=0.1 {fedavg}"]
    assert plots.plot(folders, "p.png") == [*names, "SAFL"]
    assert plots.plot(folders, "p.png", [safl, "SAF"]) == [names[1], "SAFL"]
    with pytest.raises(ValueError, match="one of run, .*, got .*nothing"):
        plots.plot(folders, "p.png", ["nothing"])


@pytest.mark.usefixtures("figures")
def test_what_cannot_be_drawn_is_said_in_one_line(tmp_path, folders):
    short = results(tmp_path / "short", "metrics.csv", {"round": 1})
    lost = results(tmp_path / "lost", "metrics.csv", row(test_accuracy="nan"))
    unlike = results(tmp_path / "unlike", "metrics.csv", row(test_accuracy=""))
    cases = [
        ([str(tmp_path)], {}, "comparison.csv"),
        ([short], {}, "bytes_up_total"),
        ([folders[0], unlike], {}, "test_accuracy"),
        ([lost], {}, "test_accuracy"),
        (folders, {"metric": "f1"}, "test_f1"),
        (folders, {"xs": ["epsilon"]}, "epsilon"),
    ]
    for workdirs, options, name in cases:
        with refused(match=name):
            plots.plot(workdirs, **{"path": "p.png"} | options)
