"""What is reproduced, is listed, documented and can be run again."""

import re

import pytest

from fl_sketch.experiments import attack
from launch import reproductions
from launch.reproductions import RESULTS, Reproduction
from tests.launching import ROOT, launch

pytestmark = pytest.mark.slow

KNOWN = reproductions.all_of()
OPTIONS = {"launch.attack": attack.Attack._fields}


def test_the_list_names_every_folder_of_results():
    done = launch("launch.reproduce", "--list")
    assert done.returncode == 0, done.stderr
    names = {line.split()[0] for line in done.stdout.splitlines()}
    assert names == {path.name for path in RESULTS.iterdir() if path.is_dir()}


@pytest.mark.parametrize("name", [name for name in KNOWN if KNOWN[name].commands])
def test_the_commands_of_a_folder_are_such(name):
    one = KNOWN[name]
    assert one.title and one.time.split()[1].rstrip("s") in ("minute", "hour")
    for module, *words in one.commands:
        file = (ROOT / module.replace(".", "/")).with_suffix(".py")
        assert file.exists()
        shared = (
            file.parent.glob("*.py") if module.startswith("benchmarks.") else [file]
        )
        source = "".join(one.read_text() for one in shared)
        flags = set(
            re.findall(r"(?:DEFINE_\w+|add_argument)\(\s*\"(?:--)?(\w+)\"", source)
        )
        flags |= {"config", "data_dir", *OPTIONS.get(module, ())}
        for word in (one for one in words if one.startswith("--")):
            flag, _, value = word.removeprefix("--").partition("=")
            assert flag.split(".")[0].removeprefix("no") in flags, word
            if flag == "config":
                assert (ROOT / value.split(":")[0]).is_file(), word
        assert any("WORKDIR" in word for word in words)


def test_a_wrong_name_is_refused_with_the_nearest():
    done = launch("launch.reproduce", "--only=song_trad", "--list")
    assert done.returncode == 2 and "Did you mean 'song_trade'?" in done.stderr


def test_commands_run_one_after_the_other_up_to_the_first_that_fails(tmp_path):
    small = "launch.trade --parameters=8 --sizes={} --seeds=1 --out=WORKDIR/{}.csv"
    lines = [small.format(4, "a"), small.format(9, "b"), small.format(4, "c")]
    one = Reproduction("", "", tuple(tuple(line.split()) for line in lines))
    assert reproductions.run(one, tmp_path / "DATA", "") == 2
    assert [path.name for path in (tmp_path / "DATA").iterdir()] == ["a.csv"]


def test_a_command_may_go_on_in_the_next_line():
    lines = "python -m launch.trade --a=1 \\\n  --b='x y'"
    text = f"# Title\n\n```bash\n# an hour\n{lines}\n```"
    assert reproductions.read(text) == Reproduction(
        "Title", "an hour", (("launch.trade", "--a=1", "--b=x y"),)
    )
