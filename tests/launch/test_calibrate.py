"""The commands of docs/privacy.md, and what is refused."""

import pytest

from tests.launching import launch
from tests.test_readme import blocks, commands, run

pytestmark = pytest.mark.slow

GOOD = {
    "epsilon": "2",
    "delta": "1e-5",
    "clients": "1000",
    "cohort": "50",
    "rounds": "200",
}


def command_of(module):
    return [c for c in commands() if module in c][-1]


def test_calibrating_prints_the_table_of_the_readme():
    printed = run(*command_of("launch.calibrate")[1:])
    (shown,) = (b for b in blocks("text") if "noise multiplier epsilon" in b)
    assert printed == shown


def test_private_training_prints_the_table_of_the_readme(tmp_path):
    command = command_of("launch.train")
    workdir = f"--workdir={tmp_path / 'run'}"
    arguments = [workdir if a.startswith("--workdir") else a for a in command[1:]]
    printed = run(*arguments).splitlines()
    (shown,) = (b.splitlines() for b in blocks("text") if "for every client" in b)
    assert shown[1:4] == printed[1:4]
    # Noise and cohorts are another draw in every run; rounds and epsilons are not.
    table = [line.split() for line in printed[6:11]]
    for ours, theirs in zip(map(str.split, shown[6:11]), table, strict=True):
        assert (ours[0], ours[-1]) == (theirs[0], theirs[-1])
        assert [float(x) for x in theirs[4:6]] == pytest.approx(
            [float(x) for x in ours[4:6]], rel=0.1
        )
    assert float(table[-1][3]) > 0.9
    assert shown[-1] == printed[-2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": "0"}, "epsilon=0"),
        ({"epsilon": "abc"}, "epsilon=abc"),
        ({"cohort": "2000"}, "cohort=2000"),
        ({"sampling": "fixed"}, "relation=replace_one"),
    ],
    ids=str,
)
def test_bad_values_get_one_line(changes, words):
    flags = [f"--{name}={value}" for name, value in (GOOD | changes).items()]
    done = launch("launch.calibrate", *flags)
    assert done.returncode == 2
    assert words in done.stderr and done.stderr.count("\n") == 1
    assert not done.stdout
