"""The launcher says what it made and where, or in one line why not."""

import pytest

from fl_sketch.data import raw
from tests import launching
from tests.data import fake_raw

pytestmark = pytest.mark.slow


def launch(*arguments, **variables):
    """Runs the command without the folder of raw data that the tests know."""
    unset = {raw.VARIABLE: None}
    return launching.launch("launch.prepare_data", *arguments, **unset | variables)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("raw")
    fake_raw.write(path)
    return path


def test_it_prints_what_it_made_where_and_from_what(folder, tmp_path):
    done = launch("--dataset=all", f"--data_dir={folder}", f"--tfds_dir={tmp_path}")
    assert done.returncode == 0 and not done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "mnist: {'train': 30, 'test': 10}, (28, 28, 1), 10 classes"
    assert f"{tmp_path}/fl_sketch/mnist/1.0.0" in lines[1]
    assert f"{tmp_path}/arrays/fl_sketch/mnist/1.0.0" in lines[2]
    listed = (folder / "SHA256SUMS").read_text()
    for file in raw.SOURCES["mnist"].files:
        (line,) = [line for line in lines if line.endswith(f"  {file}")]
        assert f"{line.split()[0]}  ./{file}" in listed
    assert lines[-4].startswith(
        "shakespeare: {'train': 14, 'test': 3}, text, 3 classes"
    )


def test_it_says_why_not_in_one_line(folder, tmp_path):
    default = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    blocked = tmp_path / "file"
    blocked.write_text("")
    for arguments, variables, words in (
        (("--dataset=mnist",), default, "--data_dir or set FL_SKETCH_DATA"),
        (("--dataset=mnist", "--data_dir=/gone"), {}, "--data_dir=/gone"),
        (("--dataset=mnist",), {raw.VARIABLE: "/gone"}, "FL_SKETCH_DATA=/gone"),
        (
            ("--dataset=sst2", f"--data_dir={folder}", f"--tfds_dir={blocked}"),
            {},
            str(blocked),
        ),
    ):
        done = launch(*arguments, **variables)
        assert done.returncode == 2
        assert words in done.stderr and done.stderr.count("\n") == 1
        assert not done.stdout
    assert not (tmp_path / "cache").exists()


def test_unknown_data_sets_are_refused(tmp_path):
    done = launch("--dataset=mnits", f"--tfds_dir={tmp_path}")
    assert done.returncode == 2 and "mnits" in done.stderr
