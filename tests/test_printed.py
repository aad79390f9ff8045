"""Commands print the tables that the pages show."""

import re

import pytest

from tests import pages

pytestmark = pytest.mark.slow


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


def printed_by(text, page, folder):
    """Returns the lines that the command of a page prints in which a text stands."""
    command = pages.command_of(text, page)
    return pages.run(*pages.placed(command, folder)).splitlines()


def test_quickstart(tmp_path):
    printed = pages.run("-m", "launch.quickstart", f"--workdir={tmp_path}").splitlines()
    shown = pages.shown_with("FedAdam", "README.md")
    same_tables(shown[1:], printed[-3:])
    assert shown[0] == printed[-4]


def test_training(tmp_path):
    page = "docs/running.md"
    printed = printed_by("launch.train", page, tmp_path)
    shown = pages.shown_with("a message:", page)
    assert shown[1:4] == printed[1:4]
    same_tables([line for line in shown[4:] if line != "..."][:-2], printed[4:])


def test_a_sweep(tmp_path):
    page = "docs/sweeps.md"
    printed = [line.split() for line in printed_by("launch.sweep", page, tmp_path)]
    lines = pages.shown_with("deviation over seeds", page)
    shown = [line.split() for line in lines if line != "..."]
    assert shown[0][:-2] == printed[0][:-2]  # devices are those of the machine
    at = printed.index(shown[1])
    means = {tuple(line[:2]): float(line[2]) for line in printed[at + 1 : -1]}
    assert len(means) == len(shown[2:])
    for *setting, mean, _, _ in shown[2:]:
        assert abs(means[tuple(setting)] - float(mean)) < 0.02


def test_a_plan(tmp_path):
    page = "docs/theory.md"
    shown = pages.shown_with("without a server", page)
    assert printed_by("launch.plan", page, tmp_path)[: len(shown)] == shown


def test_the_spectra_of_a_run(tmp_path):
    page = "docs/attacks.md"
    printed_by("checkpoint_keep", page, tmp_path)
    printed = printed_by("launch.spectrum", page, tmp_path)
    shown = pages.shown_with("intrinsic dim.", page)
    assert printed[0] == shown[0] and len(printed) == len(shown)
    for ours, theirs in zip(shown[1:3], printed[1:3], strict=True):
        ours, theirs = ([float(x) for x in line.split()] for line in (ours, theirs))
        assert theirs[0] == ours[0]
        assert abs(theirs[1] / ours[1] - 1) < 0.2 and abs(theirs[5] - ours[5]) < 0.02


def test_calibrating(tmp_path):
    page = "docs/privacy.md"
    shown = pages.shown_with("noise multiplier epsilon", page)
    assert printed_by("launch.calibrate", page, tmp_path) == shown


def test_private_training(tmp_path):
    page = "docs/privacy.md"
    printed = printed_by("launch.train", page, tmp_path)
    shown = pages.shown_with("for every client", page)
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
