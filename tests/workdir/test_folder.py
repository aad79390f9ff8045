"""The folder of a run: its config, its rows, and who may use it."""

import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from fl_sketch.privacy import accounting
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.workdir import config_file, curves, odometer
from fl_sketch.workdir.folder import Workdir
from tests.run.configs import read_json, refused

pytestmark = pytest.mark.fast

CONFIG = {"rounds": 100, "client": {"rate": 0.1, "steps": 5}}
SWEEP = {"rows": "sweep.csv", "summary": "sweep.json"}


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


def arrays(extra):
    return {name: np.frombuffer(one, np.uint8) for name, one in extra.items()}


def test_rows_after_the_checkpoint_are_forgotten_and_made_again(tmp_path):
    with Workdir(tmp_path, CONFIG) as folder:
        for number in (10, 20):
            folder.add(row(number))
        extra = arrays(folder.extra())
        folder.add(row(30))
    whole = (tmp_path / "metrics.csv").read_text()
    with open(tmp_path / "metrics.csv", "a") as file:
        file.write("4")  # the beginning of a row of round 40
    with Workdir(tmp_path, CONFIG) as again:
        again.restore(extra, 100)
        assert [r["round"] for r in again.rows] == ["10", "20"]
        again.add(row(30))
    assert (tmp_path / "metrics.csv").read_text() == whole  # the times, too


@pytest.mark.parametrize("damage", ["removed", "reordered", "changed", "gone", "text"])
def test_rows_that_someone_changed_are_written_again(tmp_path, damage):
    with Workdir(tmp_path, CONFIG) as folder:
        for number in (10, 20, 30):
            folder.add(row(number))
        extra = arrays(folder.extra())
    path = tmp_path / "metrics.csv"
    whole = path.read_text()
    head, *lines = whole.splitlines(True)
    path.write_text(
        {
            "removed": head + lines[0] + lines[2],
            "reordered": head + lines[1] + lines[0] + lines[2],
            "changed": whole.replace("0.5", "0.9"),
            "gone": "",
            "text": "x" * 200_000,
        }[damage]
    )
    with Workdir(tmp_path, CONFIG) as again:
        again.restore(extra, 100)
    untimed = whole.replace(",3.0\n", ",nan\n")
    expected = {"removed": [lines[0], untimed.splitlines(True)[2], lines[2]]}
    expected |= {"gone": untimed.splitlines(True)[1:]}
    expected |= {"text": expected["gone"]}
    assert path.read_text() == "".join([head, *expected.get(damage, lines)])


def test_a_run_without_checkpoint_begins_its_table_again(tmp_path):
    with Workdir(tmp_path, CONFIG) as folder:
        folder.add(row(10))
    with Workdir(tmp_path, CONFIG) as again:
        again.restore({}, 100)
        again.add(row(10))
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 2


def test_a_row_with_another_column_adds_it_to_all(tmp_path):
    with Workdir(tmp_path, CONFIG) as folder:
        folder.add(row(10))
        folder.add(row(20) | {"test_auc": 0.7})
    head, first, second = (tmp_path / "metrics.csv").read_text().splitlines()
    assert head.endswith(",test_auc") and first.endswith(",")
    assert second.endswith(",0.7")


def test_rows_of_a_sweep_that_were_being_written_do_not_count(tmp_path):
    with Workdir(tmp_path, CONFIG, **SWEEP) as folder:
        folder.add(row(10), row(20))
    path = tmp_path / "sweep.csv"
    whole = path.read_text()
    path.write_text(whole + whole.splitlines()[-1][:4])
    with Workdir(tmp_path, CONFIG, **SWEEP) as again:
        assert again.rows_there() == 2
        again.keep_rows(2)
        assert [r["round"] for r in again.rows] == ["10", "20"]
        again.keep_rows(1)
    assert path.read_text() == "".join(whole.splitlines(True)[:2])


def test_the_end_leaves_a_summary_and_curves(tmp_path):
    with Workdir(tmp_path, CONFIG) as folder:
        assert folder.summary() is None
        for number in (10, 20):
            folder.add(row(number))
        written = folder.finish({"test_accuracy": 0.5, "lost": float("nan")})
        assert folder.summary() == read_json(tmp_path / "summary.json")
        curves.draw(folder.rows, tmp_path / "curves.png")
    assert written["peak_rss_mb"] > 50 and written["versions"]["jax"]
    assert read_json(tmp_path / "summary.json")["lost"] is None
    assert (tmp_path / "curves.png").read_bytes()[1:4] == b"PNG"


def test_a_folder_of_another_version_is_refused_by_name(tmp_path):
    path = tmp_path / "config.json"
    for older, kind in ((CONFIG, 1), ({"format": 3, **CONFIG}, 3)):
        path.write_text(json.dumps(older))
        for read in (Workdir, lambda folder, _: config_file.read(path)):
            with refused("format 4", f"workdir={tmp_path}", f"format {kind}"):
                read(tmp_path, CONFIG)
        assert read_json(path) == older


def test_another_config_is_refused_and_the_difference_named(tmp_path):
    with Workdir(tmp_path, CONFIG):
        pass
    unlike = {"rounds": 100, "client": {"rate": 0.2, "steps": 5}}
    with refused("client.rate=0.1", "client.rate=0.2"):
        Workdir(tmp_path, unlike)
    with refused("rounds=100", "rounds=200", "extend"):
        Workdir(tmp_path, CONFIG | {"rounds": 200})
    assert config_file.read(tmp_path / "config.json").config == CONFIG


def test_a_folder_in_use_is_refused(tmp_path):
    code = (
        "import fcntl, sys\n"
        f"lock = open({str(tmp_path / '.lock')!r}, 'a')\n"
        "fcntl.flock(lock, fcntl.LOCK_EX); print('open', flush=True)\n"
        "sys.stdin.read()"
    )
    with Workdir(tmp_path, CONFIG), refused("in use", tmp_path):
        Workdir(tmp_path, CONFIG)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout.readline() == "open\n"
        with refused("in use", tmp_path):
            Workdir(tmp_path, CONFIG)
        process.kill()
    with Workdir(tmp_path, CONFIG):
        pass  # nothing of a killed process stays


@pytest.mark.parametrize("path", ["/proc/none", "/dev/null/run"])
def test_a_folder_that_cannot_be_written_is_one_line(path):
    with refused(f"workdir={path}"):
        Workdir(path, CONFIG)


def test_a_full_disk_does_not_leave_half_a_config(tmp_path, monkeypatch):
    def full(source, target):
        del source
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(os, "replace", full)
    with refused("No space left", tmp_path / "config.json"):
        Workdir(tmp_path, CONFIG)
    assert not (tmp_path / "config.json").exists()


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(handle):
        del handle
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Workdir(tmp_path, CONFIG) as folder:
        folder.add(row(10))
        monkeypatch.setattr(os, "fsync", full)
        with refused("No space left", tmp_path / "metrics.csv"):
            folder.add(row(20))
        with refused("No space left", tmp_path / "metrics.csv"):
            folder.keep_rows(1)
        with refused("No space left", tmp_path / "summary.json", error=OSError):
            folder.finish({})
    with refused("No space left", tmp_path / odometer.FILE, error=OSError):
        odometer.write(tmp_path, {})


def test_a_folder_in_the_place_of_rows_is_one_line(tmp_path):
    with Workdir(tmp_path, CONFIG) as folder:
        folder.add(row(10))
        extra = arrays(folder.extra())
    (tmp_path / "metrics.csv").unlink()
    (tmp_path / "metrics.csv").mkdir()
    with Workdir(tmp_path, CONFIG) as folder:
        for act in (lambda: folder.restore(extra, 100), lambda: folder.add(row(20))):
            with refused(tmp_path / "metrics.csv"):
                act()


@pytest.mark.parametrize("damage", ["[" * 100_000, "{", "[1]", '[["run", {}]]', None])
def test_a_damaged_odometer_is_one_line(tmp_path, damage):
    path = tmp_path / odometer.FILE
    path.mkdir() if damage is None else path.write_text(damage)
    with refused(path):
        odometer.read(tmp_path)


def entry(steps, **more):
    plan = accounting.Plan(steps=steps, sample=5, population=20)
    return Guarantee(plan, 1.5, 1e-5, "pld", 9, **more)


def test_an_odometer_keeps_what_it_was_told_and_never_goes_back(tmp_path):
    assert odometer.read(tmp_path) == {}
    one = entry(4, partition="a", secret="b")
    odometer.note(tmp_path, {"one": one, "two": entry(2)})
    assert odometer.read(tmp_path) == {"one": one, "two": entry(2)}
    odometer.note(tmp_path, {"one": entry(3), "two": entry(5)})
    assert odometer.read(tmp_path) == {"one": one, "two": entry(5)}
    odometer.set_apart(tmp_path, ["two", "none"])
    names = [*odometer.read(tmp_path)]
    assert names[0] == "one" and names[1].startswith("two" + odometer.INTERRUPTED)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    odometer.write(inner, {"three": entry(1)})
    assert odometer.below(tmp_path) == {"a/b/three": entry(1)}


def test_runs_that_protect_unlike_units_have_no_total():
    both = {"one": entry(1), "two": entry(1, unit="example")}
    with pytest.raises(odometer.NoTotal):
        odometer.total(both)
    assert odometer.total({"one": entry(1, public=True)}) is None
    assert odometer.lines({}) == [] and odometer.facts({}) == {}
