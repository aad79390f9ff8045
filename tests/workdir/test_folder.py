"""The folder of a run: its config, its rows, and who may use it."""

import contextlib
import errno
import json
import os

import numpy as np
import pytest

from fl_sketch.core import platforms
from fl_sketch.workdir import identity, odometer, rows, weights
from fl_sketch.workdir.folder import KEY, Workdir, summary_in
from fl_sketch.workdir.identity import Identity
from tests.run.configs import read_json, refused, table_in

pytestmark = pytest.mark.fast

CONFIG = {"rounds": 100, "client": {"rate": 0.1, "steps": 5}}
OWN = Identity({"train": "ab"}, "2 cpu", "program", keyed=True)
SWEEP = {"rows": "sweep.csv", "summary": "sweep.json"}


def row(number):
    return {
        "round": number,
        "train_loss": 1 / number,
        "test_loss": 2 / number,
        "test_accuracy": 0.5,
        "bytes_up_total": 10 * number,
        "rounds_per_second": 3.0,
    }


def left_by(folder, config=CONFIG, own=OWN, **options):
    """Opens a folder and leaves it as it is; returns what its checkpoints have."""
    with Workdir(folder, config, own, **options) as opened:
        return arrays(opened.extra())


def arrays(extra):
    return {name: np.frombuffer(one, np.uint8) for name, one in extra.items()}


def rounds(folder):
    return [int(one["round"]) for one in folder.rows]


@pytest.mark.parametrize("private", [False, True])
def test_rows_after_the_checkpoint_are_dropped_and_made_again(tmp_path, private):
    with Workdir(tmp_path, CONFIG, private=private) as folder:
        for number in (10, 20):
            folder.add(row(number))
        extra = arrays(folder.extra())
        folder.add(row(30))
    before = {p.name: p.read_bytes() for p in tmp_path.glob("*.csv")}
    with open(tmp_path / "metrics.csv", "a") as file:
        file.write("40\n5")  # of rows of rounds 40 and 50 their beginnings
    with Workdir(tmp_path, CONFIG, private=private) as again:
        assert [int(one["round"]) for one in again.rows_there()] == [10, 20, 30]
        again.restore(extra, 10, 100)
        assert rounds(again) == [10, 20]
        again.add(row(30))
        assert {p.name: p.read_bytes() for p in tmp_path.glob("*.csv")} == before
        again.restore({}, 10, 100)  # without a checkpoint there are no rows
        assert not [*tmp_path.glob("*.csv")] and not again.rows
        with refused("metrics.csv", "2", "0"):
            again.restore(extra, 10, 100)


def test_a_row_between_two_evaluations_goes_where_a_run_grows(tmp_path):
    with Workdir(tmp_path, CONFIG) as folder:
        for number in (10, 15):
            folder.add(row(number))
        extra = arrays(folder.extra())
        folder.restore(extra, 10, 15)
        assert rounds(folder) == [10, 15]
        folder.restore(extra, 10, 40)
        assert rounds(folder) == [10]


def test_a_private_run_publishes_only_what_is_known_to_be_safe(tmp_path):
    one = row(10) | {"epsilon": 1.5, "own": 3, "asked": 4, "answered": 3}
    facts = {"d": 5, "noise": "central"}
    with Workdir(tmp_path, CONFIG, private=True) as folder:
        folder.add(one)
        written = folder.finish({**facts, **one}, public=facts)
        assert folder.summary() == summary_in(tmp_path)
    open_to_all = {"round", "test_loss", "test_accuracy", "epsilon"}
    assert {*table_in(tmp_path)[0]} == open_to_all
    hidden = {*table_in(tmp_path, "simulator.csv")[0]}
    assert hidden == {*one} - open_to_all | {"round"}
    summary = read_json(tmp_path / "summary.json")
    assert {*summary} == open_to_all | {*facts, "versions", "identity"}
    assert {*read_json(tmp_path / "simulator.json")} == {*written} - {*summary}
    (read,) = rows.read(tmp_path / "metrics.csv")
    assert {k: float(v) for k, v in read.items()} == one


def test_a_table_of_points_has_their_keys_in_both_files(tmp_path):
    more = {"private": True, "public": ("point", "client.rate")}
    with Workdir(tmp_path, CONFIG, **SWEEP, **more) as folder:
        folder.add({"point": 0, "client.rate": 0.1, **row(10)})
        folder.add({"point": 1, "client.rate": 0.2, **row(10), "test_auc": 1})
        first, _ = table_in(tmp_path, "sweep.csv")
        assert [*first][:3] == ["point", "client.rate", "round"]
        assert first["test_auc"] == ""
        assert [*table_in(tmp_path, "simulator.csv")[0]][:2] == ["point", "round"]
        folder.keep_rows(1)
        assert len(folder.rows_there()) == len(folder.rows) == 1


def test_the_end_leaves_a_summary(tmp_path):
    with Workdir(tmp_path, CONFIG) as folder:
        assert folder.summary() is None
        written = folder.finish({"test_accuracy": 0.5, "lost": float("nan")})
        assert folder.summary() == read_json(tmp_path / "summary.json")
    assert written["peak_rss_mb"] > 50 and written["versions"]["jax"]
    assert read_json(tmp_path / "summary.json")["lost"] is None


REFUSED = {  # what another call has, and the words that name it
    "key": ({"client": {"rate": 0.2, "steps": 5}}, OWN, "client.rate=0.2"),
    "fewer": ({"rounds": 50}, OWN, "rounds=50"),
    "more": ({"rounds": 200}, OWN, "fixed by rounds"),
    "data": ({}, OWN._replace(data={"train": "ac"}), "data.train"),
    "program": ({}, OWN._replace(program="another"), "loss, rates, bound"),
    "frozen": ({}, OWN._replace(frozen="f"), "does not train"),
    "devices": ({}, OWN._replace(devices="1 cpu"), "devices 2 cpu"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_another_run_is_refused_and_changes_nothing(tmp_path, what):
    changes, other, words = REFUSED[what]
    left_by(tmp_path, private=True)
    before = (tmp_path / "config.json").read_bytes()
    with refused(words, tmp_path):
        left_by(tmp_path, CONFIG | changes, other, private=True)
    assert (tmp_path / "config.json").read_bytes() == before
    assert b'"ab"' not in before  # a plain digest confirms guesses
    left_by(tmp_path, private=True)


@pytest.mark.parametrize("private", [False, True])
def test_only_a_run_without_privacy_resumes_under_other_versions(
    tmp_path, private, monkeypatch
):
    own, lines = OWN._replace(keyed=private), []
    left_by(tmp_path, own=own)
    older = platforms.versions() | {"jax": "0.1"}
    monkeypatch.setattr(platforms, "versions", lambda: older)
    expected = refused("jax") if private else contextlib.nullcontext()
    other = own if private else own._replace(devices="1 cpu", program="new")
    with expected:
        left_by(tmp_path, own=other, private=private, say=lines.append)
    assert private or ("(now 0.1)" in lines[0] and "devices 2 cpu" in lines[0])


def test_a_run_may_grow_where_nothing_depends_on_its_length(tmp_path):
    asked = []

    def fixed_by(before):
        asked.append(before)
        return ""

    longer = CONFIG | {"rounds": 200}
    with Workdir(tmp_path / "one", CONFIG) as folder:
        folder.finish({})
    with Workdir(tmp_path / "one", longer, fixed_by=fixed_by) as folder:
        assert folder.summary() is None and asked == [100]
    assert read_json(tmp_path / "one/config.json")["rounds"] == 200
    with Workdir(tmp_path / "two", CONFIG, OWN, private=True) as folder:
        folder.finish({})
    with refused("end of a private run"):  # its secret is gone
        left_by(tmp_path / "two", longer, private=True, fixed_by=fixed_by)
    with Workdir(tmp_path / "two", CONFIG, OWN, private=True) as folder:
        assert folder.summary()


def test_a_key_of_digests_that_was_there_before_or_is_lost_is_not_used(tmp_path):
    (tmp_path / KEY).write_bytes(bytes(32))
    left_by(tmp_path)
    key = (tmp_path / KEY).read_bytes()
    assert key != bytes(32) and (tmp_path / KEY).stat().st_mode & 0o77 == 0
    for damage in (key[:5], bytes(32)):
        (tmp_path / KEY).write_bytes(damage)
        with refused(tmp_path):
            left_by(tmp_path)


LEFT = ("metrics.csv", "summary.json", odometer.FILE, "checkpoints/round_00000002.npz")


@pytest.mark.parametrize("left", LEFT)
def test_what_is_left_of_a_run_without_its_config_is_refused(tmp_path, left):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / left).write_text("")
    with refused("config.json", (tmp_path / left).name):
        left_by(tmp_path)


@pytest.mark.parametrize("text", ['{"rounds": 3}', '{"format": 3}', "[" * 10**5, "[1]"])
def test_a_config_of_another_version_or_damaged_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with refused(tmp_path):
        left_by(tmp_path)
    assert (tmp_path / "config.json").read_text() == text


def test_a_checkpoint_is_known_by_the_config_of_any_number_of_rounds(tmp_path):
    changes = {"a": {}, "b": {"rounds": 7}, "c": {"seed": 1}}
    own = OWN._replace(keyed=False)
    found = {n: left_by(tmp_path / n, CONFIG | changes[n], own) for n in changes}
    with Workdir(tmp_path / "a", CONFIG, own) as folder:
        folder.require_own(tmp_path, found["b"])
        for other in (found["c"], {}):
            with refused(tmp_path):
                folder.require_own(tmp_path, other)
    assert identity.keys_of(identity.read(tmp_path / "c/config.json"))["seed"]


def test_a_folder_in_use_is_refused(tmp_path):
    with Workdir(tmp_path, CONFIG), refused("in use", tmp_path):
        left_by(tmp_path)
    left_by(tmp_path, own=Identity())


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    with refused("workdir=/proc/none"):
        left_by("/proc/none")
    (tmp_path / "checkpoints").symlink_to(tmp_path)
    with refused("symbolic link"):
        left_by(tmp_path)

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[-1]))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with refused("No space left", "config.json"):
            Workdir(tmp_path / "new", CONFIG)
    assert not (tmp_path / "new/config.json").exists()
    with Workdir(tmp_path / "new", CONFIG) as folder:
        folder.add(row(10))
        monkeypatch.setattr(os, "fsync", full)
        for act in (lambda: folder.add(row(20)), lambda: folder.keep_rows(1)):
            with refused("No space left", "metrics.csv"):
                act()


def test_weights_name_the_data_that_they_have_seen(tmp_path):
    assert weights.trained_on(tmp_path) == ()
    (tmp_path / "config.json").write_text(json.dumps({"trained_on": ["older"]}))
    assert weights.trained_on(tmp_path / "w.npz") == ("older",)
    weights.write_arrays(tmp_path, {"w": np.zeros(2)}, {"trained_on": ["mnist"]})
    for source in (tmp_path, tmp_path / "w.npz"):
        assert weights.trained_on(source) == ("mnist",)
    (tmp_path / "params.json").write_text("{")
    with refused("params.json"):
        weights.trained_on(tmp_path)
