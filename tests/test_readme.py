"""What the README shows, runs and prints what it says."""

import os
import re
import subprocess
import sys

from fl_sketch.algorithms import catalog
from fl_sketch.run import build
from tests.launching import ENVIRONMENT, ROOT
from tests.run.configs import config_with

README = (ROOT / "README.md").read_text()


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


def same_tables(shown, printed):
    """Compares lines that begin alike: all but accuracies, losses and speeds."""
    for line in shown:
        ours = line.split()
        theirs = next(
            found
            for found in map(str.split, printed)
            if found[:1] == ours[:1] and len(found) == len(ours)
        )
        for one, other in zip(ours, theirs, strict=True):
            if re.fullmatch(r"\d\.\d{4}", one):
                assert abs(float(one) - float(other)) < 0.03, line
            elif not re.fullmatch(r"\d+(\.\d)?", one):  # a speed or a time
                assert one == other, line


def test_quickstart_prints_the_table_of_the_readme(tmp_path):
    printed = run("-m", "launch.quickstart", f"--workdir={tmp_path}").splitlines()
    shown = next(b for b in blocks("text") if "FedAdam" in b).splitlines()
    same_tables(shown[1:], printed[-3:])
    assert shown[0] == printed[-4]


def test_training_prints_the_table_of_the_readme(tmp_path):
    command = next(c for c in commands() if "launch.train" in c)
    workdir = f"--workdir={tmp_path / 'run'}"
    arguments = [workdir if a.startswith("--workdir") else a for a in command[1:]]
    printed = run(*arguments).splitlines()
    shown = next(b for b in blocks("text") if "a message:" in b).splitlines()
    assert shown[1:4] == printed[1:4]
    same_tables([line for line in shown[4:] if line != "..."][:-2], printed[4:])


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


def shown_with(text):
    return next(b for b in blocks("text") if text in b).splitlines()


def test_the_plan_prints_the_lines_of_the_readme():
    command = next(c for c in commands() if "launch.plan" in c)
    shown = shown_with("without a server")
    assert run(*command[1:]).splitlines()[: len(shown)] == shown


def test_a_runs_spectra_are_those_of_the_readme(tmp_path):
    train, spectrum = (
        next(c for c in commands() if part in " ".join(c))
        for part in ("checkpoint_keep", "launch.spectrum")
    )
    for command in train, spectrum:
        place = [a.replace("/tmp/run", str(tmp_path / "run")) for a in command[1:]]
        printed = run(*place).splitlines()
    shown = shown_with("intrinsic dim.")
    assert printed[0] == shown[0] and len(printed) == len(shown)
    for ours, theirs in zip(shown[1:3], printed[1:3], strict=True):
        ours, theirs = ([float(x) for x in line.split()] for line in (ours, theirs))
        assert theirs[0] == ours[0]
        assert abs(theirs[1] / ours[1] - 1) < 0.2 and abs(theirs[5] - ours[5]) < 0.02


def commands():
    lines = (line for block in blocks("bash") for line in block.splitlines())
    return [line.split("#")[0].split() for line in lines if line.split("#")[0].strip()]


ABOVE = ("launch.sweep", "launch.plan", "launch.spectrum")  # run by tests above
CUT = {  # what makes a command short
    "launch.train": ["--config.rounds=2"],
    "launch.compare": [
        "--only=iid tau=1 FedAvg",
        "--set=rounds=2",
        "--set=cohort.size=1",
    ],
    "launch.audit": ["--trials=2000", "--canaries=20"],
    "launch.attack": ["--images=1", "--steps=3", "--config.model.name=logistic"],
}


def test_every_command_of_the_readme_is_a_verb_of_make_or_runs_as_it_stands(tmp_path):
    verbs = re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    data, ran = os.environ.get("FL_SKETCH_DATA"), set()
    (tmp_path / "sweep").mkdir()
    names = "point,client.rate,round,test_accuracy,bytes_up_total,bytes_down_total"
    (tmp_path / "sweep/sweep.csv").write_text(f"{names}\n0,0.1,1,0.5,10,10\n")
    for first, *words in commands():
        if first == "make":
            assert words[0] in verbs
            continue
        assert (first, words[0]) == ("python", "-m")
        lacks = any("DATA" in word for word in words) and not data
        if lacks or words[1] in ABOVE:
            continue
        placed = [w.replace("/tmp", str(tmp_path)) for w in words]
        placed = [w.replace("DATA", str(data)) for w in placed]
        run(*placed, *CUT.get(words[1], []))
        ran.add(words[1])
    assert {"launch.train", "launch.plot", "launch.calibrate"} <= ran


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_results_of_the_readme_stand_in_the_page_of_results():
    page = (ROOT / "results/README.md").read_text()
    section = README.split("## Results\n")[1].split("\n## ")[0]
    rows = [line.split("|")[3] for line in section.splitlines() if "|" in line]
    numbers = {number for row in rows for number in re.findall(r"\d+\.\d+", row)}
    assert len(numbers) > 4
    for number in numbers:
        assert number in page, number


def test_the_table_of_algorithms_is_what_the_code_does():
    table = README.split("| `config.algorithm` |")[1].split("\n\n")[0]
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines()]
    exchanges, states = {}, {}
    for names, _, _, count, kept in rows[2:]:
        for name in re.findall(r"\[`(\w+)`\]", names):
            exchanges[name] = exchanges.get(name, set()) | set(re.findall(r"\d", count))
            states[name] = kept
    assert set(exchanges) == set(catalog.methods())
    for name, allowed in exchanges.items():
        config = config_with(algorithm=name, sketch__rows=3, sketch__compression=5.0)
        config.compressor.name = "random_k" if name == "marina" else "top_k"
        if name == "private_sketching":
            config.privacy.unit = "example"
            config.client.batches = "subsets"
        facts = build(config).facts
        assert str(facts["exchanges"]) in allowed, name
        kept = {"": 0, "d": 1}.get(states[name], 1 if name == "ef_sign_sgd" else 0)
        assert bool(facts["client_state_bytes"]) == bool(kept), name
