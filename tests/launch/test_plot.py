"""One picture of folders of results."""

import pytest

from fl_sketch.core import files
from fl_sketch.sweep import plots
from tests.launching import launch

pytestmark = pytest.mark.slow


def row(**changes):
    names = ("round", "train_loss", "test_loss", "test_accuracy")
    names += ("bytes_up_total", "bytes_down_total")
    return dict.fromkeys(names, 1) | changes


@pytest.fixture
def folders(tmp_path):
    run, sweep, compared = (tmp_path / name for name in ("run", "swept", "compared"))
    for folder in (run, sweep, compared):
        folder.mkdir()
    files.write_rows(run / "metrics.csv", [row(round=1), row(round=2)])
    points = [
        {"point": 0, "client.rate": 0.1, "seed": 0},
        {"point": 1, "client.rate": 0.1, "seed": 1},
        {"point": 2, "client.rate": 0.3, "seed": 0},
    ]
    files.write_rows(sweep / "sweep.csv", [own | row() for own in points])
    rows = [row(method="SAFL", point=0), row(method="SAFL", point=1)]
    files.write_rows(compared / "comparison.csv", rows)
    return [str(run), str(sweep), str(compared)]


def test_runs_points_and_methods_have_a_line_each(folders, tmp_path):
    path = tmp_path / "picture.png"
    names = plots.plot(folders, path)
    assert names == ["run", "swept client.rate=0.1", "swept client.rate=0.3", "SAFL"]
    assert path.read_bytes().startswith(b"\x89PNG")


def test_lines_can_be_chosen_by_their_names(folders, tmp_path):
    path = tmp_path / "picture.png"
    assert plots.plot(folders, path, ["=0.1", "SAF"]) == [
        "swept client.rate=0.1",
        "SAFL",
    ]
    with pytest.raises(ValueError, match="one of run, swept client.rate=0.1, .*, got"):
        plots.plot(folders, path, ["nothing"])


def test_runs_in_folders_of_one_name_have_a_line_each(tmp_path):
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    for folder in folders:
        folder.mkdir(parents=True)
        files.write_rows(folder / "metrics.csv", [row()])
    names = plots.plot([*map(str, folders)], tmp_path / "picture.png")
    assert names == [*map(str, folders)]


def test_settings_that_differ_by_any_key_are_lines_of_their_own(tmp_path):
    points = [{"point": n, "algorithm": a} for n, a in enumerate(("safl", "fedavg"))]
    files.write_rows(tmp_path / "sweep.csv", [own | row() for own in points])
    names = plots.plot([str(tmp_path)], tmp_path / "picture.png")
    assert [name.split()[-1] for name in names] == [
        "algorithm=safl",
        "algorithm=fedavg",
    ]


def test_a_folder_without_results_is_refused_in_a_line(tmp_path):
    done = launch("launch.plot", f"--workdir={tmp_path}", f"--out={tmp_path}/p.png")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "comparison.csv, sweep.csv, metrics.csv" in done.stderr


def test_methods_of_one_name_in_two_comparisons_are_two_lines(tmp_path):
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        rows = [row(method="SAFL", point=p) for p in range(1 + (place == "two"))]
        files.write_rows(tmp_path / place / "comparison.csv", rows)
    folders = [str(tmp_path / place) for place in ("one", "two")]
    assert plots.plot(folders, tmp_path / "p.png") == ["SAFL", "two: SAFL"]


def test_a_row_that_is_being_written_does_not_count(tmp_path):
    files.write_rows(tmp_path / "metrics.csv", [row(round=1), row(round=2)])
    with open(tmp_path / "metrics.csv", "a") as file:
        file.write("3,1,1")
    assert len(plots.chosen([str(tmp_path)])) == 2


def test_folders_of_unlike_metrics_are_refused_by_name(tmp_path):
    for place, more in (("one", {}), ("two", {"test_mae": 1})):
        (tmp_path / place).mkdir()
        own = row(**more)
        if more:
            del own["test_accuracy"]
        files.write_rows(tmp_path / place / "metrics.csv", [own])
    folders = [str(tmp_path / place) for place in ("one", "two")]
    with pytest.raises(
        ValueError, match="test_accuracy in all rows, .* of two: choose"
    ):
        plots.plot(folders, tmp_path / "p.png")


def test_labels_may_have_an_equals_sign_on_both_sides():
    names = ["swept client.rate=0.1", "run"]
    texts = ["swept client.rate=0.1=rate = 0.1", "run=SAFL=1/100"]
    assert plots.labels_of(texts, names) == {
        "swept client.rate=0.1": "rate = 0.1",
        "run": "SAFL=1/100",
    }
    with pytest.raises(ValueError, match="Did you mean 'run'"):
        plots.labels_of(["rum=x"], names)


def test_a_folder_that_is_given_twice_or_as_a_dot_is_one_line_by_its_name(
    tmp_path, monkeypatch
):
    folder = tmp_path / "mine"
    folder.mkdir()
    files.write_rows(folder / "metrics.csv", [row(round=1), row(round=2)])
    monkeypatch.chdir(folder)
    assert plots.plot([".", str(folder)], "p.png") == ["mine"]
    assert len(plots.chosen([".", str(folder)])) == 2


def test_nothing_finite_is_no_picture(tmp_path):
    files.write_rows(tmp_path / "metrics.csv", [row(test_accuracy="nan")])
    with pytest.raises(ValueError, match="numbers in test_accuracy, got nothing that"):
        plots.plot([str(tmp_path)], tmp_path / "p.png")
