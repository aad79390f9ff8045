"""Files are whole or not there, on the disk, and never somebody else's by a link."""

import errno
import os
import stat

import pytest

from fl_sketch.core import files
from fl_sketch.workdir.folder import Workdir


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done, fsync, replace = [], os.fsync, os.replace

    def synced(handle):
        kind = os.fstat(handle)
        done.append("folder" if stat.S_ISDIR(kind.st_mode) else kind.st_size)
        fsync(handle)

    def renamed(old, new):
        done.append("name")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    files.write_text(tmp_path / "config.json", "{}")
    assert done == [2, "name", "folder"]


def test_a_planted_link_is_not_followed(tmp_path):
    target = tmp_path / "precious"
    target.write_text("as it was")
    for name in (".rows.csv.partial", "rows.csv"):
        (tmp_path / name).symlink_to(target)
    files.write_rows(tmp_path / "rows.csv", [{"round": 1}])
    assert target.read_text() == "as it was"
    assert not (tmp_path / "rows.csv").is_symlink()
    assert [*files.read_rows(tmp_path / "rows.csv")] == [{"round": "1"}]


def test_a_full_disk_is_said_with_the_name_of_the_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="rows.csv") as caught:
        files.write_rows(tmp_path / "rows.csv", [{"round": 1}])
    assert caught.value.errno == errno.ENOSPC and not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", [".lock", "metrics.csv"])
def test_a_workdir_with_a_link_in_it_is_refused_in_a_line(tmp_path, name):
    target, folder = tmp_path / "precious", tmp_path / "run"
    target.write_text("as it was")
    folder.mkdir()
    (folder / name).symlink_to(target)
    with (
        pytest.raises((ValueError, OSError), match="symbolic links") as caught,
        Workdir(folder, {"rounds": 3, "eval_every": 1}) as run,
    ):
        run.add({"round": 1})
    assert "\n" not in str(caught.value) and target.read_text() == "as it was"


def test_a_private_file_is_its_owners_alone(tmp_path):
    path = tmp_path / "key"
    files.write_private(path, bytes(range(32)), tmp_path / ".partial")
    assert path.read_bytes() == bytes(range(32))
    assert [*tmp_path.iterdir()] == [path] and path.stat().st_mode & 0o777 == 0o600
