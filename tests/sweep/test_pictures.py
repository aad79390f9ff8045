"""Curves against what one asks for, in three forms, and what it took to a score."""

import math

import pytest

from fl_sketch.core import files
from fl_sketch.sweep import pictures, plots
from fl_sketch.sweep.pictures import Asked

KEYS = ("method", "point", "round", "test_accuracy", "test_mae", "bytes_up_total",
        "bytes_down_total", "simulated_seconds", "epsilon")  # fmt: skip
ROWS = [
    dict(zip(KEYS, map(str, row), strict=True))
    for row in (
        ("100x", 0, 10, 0.5, 3, 1e6, 2e6, 5, 1),
        ("100x", 0, 20, 0.8, 2, 2e6, 4e6, 10, 2),
        ("100x", 1, 10, 0.7, 3, 1e6, 2e6, 5, 1),
        ("100x", 1, 20, 0.9, 1, 2e6, 4e6, 10, 2),
        ("FedAvg", 0, 10, 0.8, 1, 1e8, 2e8, 50, 1),
        ("FedAvg", 0, 20, 0.7, 4, 2e8, 4e8, 90, 2),
    )
]


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draws, and returns the figure."""
    kept = []
    monkeypatch.setattr(files, "write_figure", lambda path, one: kept.append(one))

    def draw(*args):
        pictures.draw(ROWS, tmp_path / "x.png", Asked(*args))
        return kept[-1]

    return draw


def test_each_axis_is_what_it_says(drawn):
    figure = drawn(("rounds", "up", "down", "both", "seconds", "epsilon"))
    ends = []
    for panel in figure.axes:
        line = panel.get_lines()[0]
        ends.append((panel.get_xlabel(), *line.get_xdata()))
        assert line.get_ydata() == pytest.approx([0.6, 0.85])  # means of two seeds
    assert ends == [
        ("round", 10, 20),
        ("sent by all clients", 1e6, 2e6),
        ("received by all clients", 2e6, 4e6),
        ("sent and received by all clients", 3e6, 6e6),
        ("simulated seconds", 5, 10),
        ("epsilon", 1, 2),
    ]
    assert figure.axes[0].get_ylabel() == "test accuracy"


def test_words_are_those_that_are_asked_for(drawn):
    figure = drawn(("up",), "mae", {"100x": "SAFL, 1/100"}, "Digits")
    (panel,), (legend,) = figure.axes, figure.legends
    assert panel.get_ylabel() == "test mae" and figure.get_suptitle() == "Digits"
    assert [text.get_text() for text in legend.get_texts()] == ["SAFL, 1/100", "FedAvg"]
    assert (
        legend.get_title().get_text()
        == "line: mean of up to 2 seeds\nband: their range"
    )


def test_bytes_have_few_ticks_that_one_can_read(drawn):
    figure = drawn(("up",))
    figure.canvas.draw()
    (panel,) = figure.axes
    low, high = panel.get_xlim()
    shown = [
        label.get_text()
        for label in panel.get_xticklabels()
        if low <= label.get_position()[0] <= high and label.get_text()
    ]
    assert 2 <= len(shown) <= 6 and all(text.endswith("MB") for text in shown), shown


@pytest.mark.parametrize(
    ("form", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_a_picture_has_the_form_of_its_ending_and_the_same_bytes(
    tmp_path, form, begins
):
    both = []
    for name in ("a", "b"):
        pictures.draw(ROWS, tmp_path / f"{name}.{form}")
        both.append((tmp_path / f"{name}.{form}").read_bytes())
    assert both[0] == both[1] and both[0].startswith(begins)


def test_what_it_took_to_a_score_is_the_mean_of_first_times():
    found = pictures.reached(ROWS, 0.7)
    assert [
        (row["method"], row["seeds"], row["rounds"], row["up"]) for row in found
    ] == [
        ("100x", "2 of 2", 15, 1.5e6),
        ("FedAvg", "1 of 1", 10, 1e8),
    ]
    few = pictures.reached(ROWS, 0.85, Asked(labels={"100x": "SAFL"}))
    assert [(row["method"], row["seeds"]) for row in few] == [
        ("SAFL", "1 of 2"),
        ("FedAvg", "0 of 1"),
    ]
    assert math.isnan(few[0]["up"])
    least = pictures.reached(ROWS, 1.5, Asked(metric="mae"))  # less is better
    assert [row["seeds"] for row in least] == ["1 of 1", "1 of 2"]
    table = plots.reached(ROWS, 0.85, Asked())
    assert table[2] == "| 100x | 1 of 2 | - | - | - |"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Asked(("bytes",)), "x to be one of 'rounds', 'up'"),
        (Asked(metric="f1"), "metric to be one of 'test_accuracy', 'test_mae'"),
    ],
)
def test_what_rows_do_not_have_is_said_in_one_line(tmp_path, asked, words):
    with pytest.raises(ValueError, match=words):
        pictures.draw(ROWS, tmp_path / "x.png", asked)


def test_a_run_without_epsilon_has_no_such_axis(tmp_path):
    rows = [row | {"epsilon": ""} for row in ROWS]
    with pytest.raises(ValueError, match="rows with epsilon for x=epsilon"):
        pictures.draw(rows, tmp_path / "x.png", Asked(("epsilon",)))


def test_a_form_that_is_none_is_refused_before_anything(tmp_path):
    with pytest.raises(ValueError, match="ending of out to be one of '.png', '.pdf'"):
        plots.plot([str(tmp_path)], str(tmp_path / "x.gif"))
