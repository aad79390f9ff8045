"""The launcher says what it made and where, or in one line why not."""

import pytest

from fl_sketch.data import cache, raw
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
    done = launch("--dataset=all", f"--data_dir={folder}", f"--cache_dir={tmp_path}")
    assert done.returncode == 0 and not done.stderr
    lines = done.stdout.splitlines()
    assert (
        lines[0] == "mnist: 30 training and 10 test examples, (28, 28, 1), 10 classes"
    )
    assert lines[1].endswith(f" s  {cache.folder(tmp_path, 'mnist')}")
    listed = (folder / raw.SUMS).read_text()
    for file in raw.SOURCES["mnist"].files:
        (line,) = [line for line in lines if line.endswith(f"  {file}")]
        assert f"{line.split()[0]}  ./{file}" in listed
    assert "shakespeare: 14 training and 3 test examples, text, 3 speakers" in lines


def test_it_reads_again_what_is_spoilt(folder, tmp_path):
    words = ["--dataset=sst2", f"--data_dir={folder}", f"--cache_dir={tmp_path}"]
    assert launch(*words).returncode == 0
    file = cache.folder(tmp_path, "sst2") / "test_targets.npy"
    file.write_bytes(b"spoilt")
    assert launch(*words).returncode == 2
    assert launch(*words, "--overwrite").returncode == 0
    assert file.read_bytes() != b"spoilt"


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["--dataset=mnist"], {}, "--data_dir or set FL_SKETCH_DATA"),
        (["--dataset=mnist", "--data_dir=/gone"], {}, "--data_dir=/gone"),
        (["--dataset=mnist"], {raw.VARIABLE: "/gone"}, "FL_SKETCH_DATA=/gone"),
        (["--dataset=sst2", "--data_dir={folder}", "--cache_dir={blocked}"], {},
         "{blocked}"),
        (["--dataset=mnits"], {}, "mnits"),
    ],
)  # fmt: skip
def test_it_says_why_not_in_one_line(folder, tmp_path, arguments, variables, words):
    places = {"folder": folder, "blocked": tmp_path / "file"}
    places["blocked"].write_text("")
    home = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = launch(*(word.format(**places) for word in arguments), **home | variables)
    assert done.returncode == 2 and not done.stdout
    assert words.format(**places) in done.stderr
    assert done.stderr.count("\n") == 1 or "mnits" in words
    assert not (tmp_path / "cache").exists()
