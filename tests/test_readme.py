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


def test_training_prints_the_table_of_the_readme(tmp_path):
    printed = printed_by("launch.train", tmp_path)
    block = next(b for b in blocks("text") if "numbers a message" in b)
    shown = [line.split() for line in block.splitlines() if line != "..."]
    assert shown[0][:-2] == printed[0][:-2]  # devices are those of the machine
    assert shown[1] == printed[1]
    for row in shown[2:]:
        same_round = next(line for line in printed if line[0] == row[0])
        assert abs(float(row[3]) - float(same_round[3])) < 0.02
        assert row[4:6] == same_round[4:6]


def test_sweeping_prints_the_table_of_the_readme(tmp_path):
    printed = printed_by("launch.sweep", tmp_path)
    block = next(b for b in blocks("text") if "deviation over seeds" in b)
    shown = [line.split() for line in block.splitlines() if line != "..."]
    assert shown[0][:-2] == printed[0][:-2]  # devices are those of the machine
    at = printed.index(shown[1])
    means = {tuple(line[:2]): float(line[2]) for line in printed[at + 1 : -1]}
    assert len(means) == len(shown[2:])
    for *setting, mean, _, _ in shown[2:]:
        assert abs(means[tuple(setting)] - float(mean)) < 0.02


def printed_by(module, tmp_path):
    """Runs the README's command of a module; returns the words of each line."""
    (command,) = [c for c in commands() if module in c]
    workdir = f"--workdir={tmp_path / 'run'}"
    arguments = [a if not a.startswith("--workdir") else workdir for a in command[1:]]
    return [line.split() for line in run(*arguments).splitlines()]


def commands():
    lines = (line for block in blocks("bash") for line in block.splitlines())
    return [line.split("#")[0].split() for line in lines if line.split("#")[0].strip()]


def test_every_command_of_the_readme_is_a_verb_of_make_or_run_by_these_tests():
    verbs = re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in commands():
        assert command[0] == "make" and command[1] in verbs or command[0] == "python"


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
