"""What stands on top of a config file can be copied, and does what it says."""

import ast
import pathlib
import re
import shlex

import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "configs"
OTHERS = ("experiments.features", "launch.quickstart")
FILES = sorted(path.name for path in FOLDER.glob("[a-z]*.py"))


@pytest.mark.parametrize("name", FILES)
def test_a_config_has_its_command_on_top(name):
    text = ast.get_docstring(ast.parse((FOLDER / name).read_text()))
    commands = re.findall(r"^Command: (python -m .*)", text, flags=re.MULTILINE)
    assert commands, text
    for command in commands:
        module, *flags = shlex.split(command)[2:]
        assert (FOLDER.parent / module.replace(".", "/")).with_suffix(".py").exists()
        given = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
        assert module in OTHERS or f"configs/{name}" in given["config"]
