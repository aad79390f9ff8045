"""The folder of a run: its config, its rows, and who may use it."""

import json
import os
import subprocess
import sys

import pytest
from fl_sketch.workdir.kept_config import read_config

from fl_sketch.workdir.folder import Files, Workdir

pytestmark = pytest.mark.fast

CONFIG = {"rounds": 100, "client": {"rate": 0.1, "steps": 5}}


def row(number):
    return {
        "round": number,
        "train_loss": 1 / number,
        "test_loss": 2 / number,
        "test_accuracy": 0.5,
        "bytes_up_total": 10 * number,
        "bytes_down_total": 20 * number,
        "rounds_per_second": 3.0,
    }


def test_rows_after_the_checkpoint_are_forgotten_and_made_again(tmp_path):
    with Workdir(tmp_path, CONFIG) as folder:
        for number in (10, 20):
            folder.add(row(number))
        beside = folder.beside()
        folder.add(row(30))
    whole = (tmp_path / "metrics.csv").read_text()
    with open(tmp_path / "metrics.csv", "a") as file:
        file.write("4")  # the beginning of a row of round 40
    with Workdir(tmp_path, CONFIG) as again:
        assert again.restore(beside)
        assert [r["round"] for r in again.rows] == ["10", "20"]
        again.add(row(30))
    assert (tmp_path / "metrics.csv").read_text() == whole


@pytest.mark.parametrize("damage", ["removed", "reordered", "changed", "gone"])
def test_rows_that_somebody_changed_are_put_back(tmp_path, damage):
    with Workdir(tmp_path, CONFIG) as folder:
        for number in (10, 20, 30):
            folder.add(row(number))
        beside = folder.beside()
    path = tmp_path / "metrics.csv"
    whole = path.read_text()
    head, *lines = whole.splitlines(True)
    path.write_text(
        {
            "removed": head + lines[0] + lines[2],
            "reordered": head + lines[1] + lines[0] + lines[2],
            "changed": whole.replace("0.5", "0.9"),
            "gone": "",
        }[damage]
    )
    with Workdir(tmp_path, CONFIG) as again:
        assert not again.restore(beside)
    assert path.read_text() == whole.replace(",3.0\n", ",nan\n")  # times are gone


def test_a_run_without_checkpoint_begins_its_table_again(tmp_path):
    with Workdir(tmp_path, CONFIG) as folder:
        folder.add(row(10))
    with Workdir(tmp_path, CONFIG) as again:
        assert again.restore({})
        again.add(row(10))
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 2


SWEEP = Files("sweep.csv", "sweep.json", "map.png", lambda rows, path: None)


def test_rows_of_a_sweep_that_were_being_written_do_not_count(tmp_path):
    with Workdir(tmp_path, CONFIG, SWEEP) as folder:
        folder.add(row(10), row(20))
    path = tmp_path / "sweep.csv"
    whole = path.read_text()
    path.write_text(whole + whole.splitlines()[-1][:4])
    with Workdir(tmp_path, CONFIG, SWEEP) as again:
        again.keep_rows(len)
        assert [r["round"] for r in again.rows] == ["10", "20"]
        again.keep_rows(lambda rows: 1)
    assert path.read_text() == "".join(whole.splitlines(True)[:2])
    with Workdir(tmp_path, CONFIG, SWEEP) as third:
        third.keep_rows(len)
        assert len(third.rows) == 1


@pytest.mark.parametrize("damage", ["removed", "reordered", "changed", "gone"])
def test_rows_of_a_sweep_that_somebody_changed_are_refused(tmp_path, damage):
    with Workdir(tmp_path, CONFIG, SWEEP) as folder:
        folder.add(row(10), row(20), row(30))
    path = tmp_path / "sweep.csv"
    head, *lines = path.read_text().splitlines(True)
    path.write_text(
        {
            "removed": head + lines[0] + lines[2],
            "reordered": head + lines[1] + lines[0] + lines[2],
            "changed": head + "".join(lines).replace("0.5", "0.9"),
            "gone": "",
        }[damage]
    )
    with (
        Workdir(tmp_path, CONFIG, SWEEP) as again,
        pytest.raises(ValueError, match="the first 3 rows of .*sweep.csv as they were"),
    ):
        again.keep_rows(len)


def test_the_end_leaves_a_summary_and_curves(tmp_path):
    with Workdir(tmp_path, CONFIG) as folder:
        assert folder.summary() is None
        for number in (10, 20):
            folder.add(row(number))
        written = folder.finish({"test_accuracy": 0.5})
        assert folder.summary() == written
    assert json.loads((tmp_path / "summary.json").read_text()) == written
    assert written["peak_rss_mb"] > 50 and written["versions"]["jax"]
    assert (tmp_path / "curves.png").read_bytes()[1:4] == b"PNG"


def test_a_folder_of_another_version_is_refused_by_name(tmp_path):
    older = json.dumps(CONFIG)  # as version 1 wrote it, without a format
    (tmp_path / "config.json").write_text(older)
    for read in (Workdir, lambda folder, _: read_config(folder / "config.json")):
        with pytest.raises(ValueError, match=r"format 3, got workdir=.* of format 1:"):
            read(tmp_path, CONFIG)
    assert (tmp_path / "config.json").read_text() == older


def test_another_config_is_refused_and_the_difference_named(tmp_path):
    with Workdir(tmp_path, CONFIG):
        pass
    other = {"rounds": 100, "client": {"rate": 0.2, "steps": 5}}
    with pytest.raises(ValueError, match="client.rate=0.1.*got client.rate=0.2"):
        Workdir(tmp_path, other)
    assert read_config(tmp_path / "config.json") == CONFIG


def test_a_folder_in_use_is_refused(tmp_path):
    code = (
        "import sys; from fl_sketch.workdir.folder import Workdir\n"
        f"w = Workdir({str(tmp_path)!r}, {CONFIG!r}); print('open', flush=True)\n"
        "sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(ValueError, match="in use"):
            Workdir(tmp_path, CONFIG)
        other.kill()
    with Workdir(tmp_path, CONFIG):
        pass  # nothing of a killed process stays


@pytest.mark.parametrize("path", ["/proc/none", "/dev/null/run"])
def test_a_folder_that_cannot_be_written_is_one_line(path):
    with pytest.raises(ValueError, match=f"workdir={path}") as caught:
        Workdir(path, CONFIG)
    assert "\n" not in str(caught.value)


def test_a_full_disk_does_not_leave_half_a_config(tmp_path, monkeypatch):
    def full(source, target):
        del source
        raise OSError(28, os.strerror(28), str(target))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ValueError, match="No space left"):
        Workdir(tmp_path, CONFIG)
    assert not (tmp_path / "config.json").exists()


def test_rows_of_a_sweep_without_their_sum_are_refused_and_stay(tmp_path):
    with Workdir(tmp_path, CONFIG, SWEEP) as folder:
        folder.keep_rows(len)
        folder.add(row(10))
    text = (tmp_path / "sweep.csv").read_text()
    (tmp_path / ".sweep.csv.sum").unlink()
    with (
        Workdir(tmp_path, CONFIG, SWEEP) as again,
        pytest.raises(ValueError, match="sweep.csv.sum beside .* got none"),
    ):
        again.keep_rows(len)
    assert (tmp_path / "sweep.csv").read_text() == text
