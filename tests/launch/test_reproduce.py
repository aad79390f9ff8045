"""What is reproduced, is listed, documented and can be run again."""

import pathlib
import shlex

import pytest

from launch.reproductions import REPRODUCTIONS, Reproduction, run
from tests.launching import launch

RESULTS = pathlib.Path(__file__).parents[2] / "results"


def test_the_list_names_every_folder_of_results():
    done = launch("launch.reproduce", "--list")
    assert done.returncode == 0, done.stderr
    names = {line.split()[0] for line in done.stdout.splitlines()}
    assert names == set(REPRODUCTIONS)
    assert names == {path.name for path in RESULTS.iterdir() if path.is_dir()}


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_the_readme_of_a_folder_has_its_commands(name):
    text = " ".join((RESULTS / name / "README.md").read_text().split())
    for command in REPRODUCTIONS[name].commands:
        module, *words = shlex.split(command)
        assert f"python -m {module}" in text
        for word in words:
            assert word.split("WORKDIR")[0].split("DATA")[0] in text, word


def test_a_wrong_name_is_refused_with_the_nearest():
    done = launch("launch.reproduce", "--only=song_trad", "--list")
    assert done.returncode == 2 and "Did you mean 'song_trade'?" in done.stderr


def test_commands_run_one_after_the_other_up_to_the_first_that_fails(tmp_path):
    small = "launch.trade --parameters=8 --sizes={} --seeds=1 --out=WORKDIR/{}.csv"
    commands = [small.format(4, "a"), small.format(9, "b"), small.format(4, "c")]
    assert run(Reproduction("", tuple(commands), 1), tmp_path / "DATA", "") == 2
    assert [path.name for path in (tmp_path / "DATA").iterdir()] == ["a.csv"]
