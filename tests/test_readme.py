"""What the README shows, runs and prints what it says."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def run(*command):
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python_blocks_run():
    found = blocks("python")
    assert found
    for block in found:
        run("-c", block)


def test_quickstart_prints_the_table_of_the_readme():
    printed = run("-m", "launch.quickstart").strip().splitlines()
    shown = next(b for b in blocks("text") if "4 devices" in b).strip().splitlines()
    assert shown[:2] == printed[:2]
    for ours, theirs in zip(shown[2:], printed[2:], strict=True):
        *same, accuracy, _seconds = ours.split()
        *same_now, accuracy_now, _ = theirs.split()
        assert same == same_now
        assert abs(float(accuracy) - float(accuracy_now)) < 0.02


def test_every_command_of_the_readme_is_one_of_the_makefile():
    verbs = re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = [
        line.split("#")[0].split() for b in blocks("bash") for line in b.splitlines()
    ]
    for command in filter(None, commands):
        assert command[0] == "make" and command[1] in verbs, command


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
