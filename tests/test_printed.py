"""Commands print the tables that the pages show."""

import pytest

from tests import pages

pytestmark = pytest.mark.slow


COMMANDS = {
    name: pages.command_of(text, page)
    for name, (text, page) in {
        "train": ("safl_digits", "docs/running.md"),
        "alone": ("/tmp/alone", "docs/running.md"),
        "sweep": ("launch.sweep", "docs/sweeps.md"),
        "plot": ("launch.plot", "docs/sweeps.md"),
        "plan": ("launch.plan", "docs/running.md"),
        "train and keep": ("checkpoint_keep", "docs/attacks.md"),
        "spectrum": ("launch.spectrum", "docs/attacks.md"),
        "calibrate": (
            "launch.calibrate --epsilon=2 --delta=1e-5 --clients=1000 --cohort=50",
            "docs/privacy.md",
        ),
        "compare bits": ("--sampling=everyone", "docs/privacy.md"),
        "train in private": (
            "private_safl.py --workdir=/tmp/private_digits",
            "docs/privacy.md",
        ),
        "release": ("launch.release", "docs/privacy.md"),
    }.items()
}


def printed_by(name, folder):
    """Returns the lines that a command prints."""
    return pages.run(*pages.placed(COMMANDS[name], folder)).splitlines()


def test_training_and_its_picture(tmp_path):
    printed = printed_by("train", tmp_path)
    shown = pages.shown_with("download:", "docs/running.md")
    assert shown[1:4] == printed[1:4]
    pages.same_tables([line for line in shown[4:] if line != "..."][:-2], printed[4:])

    (tmp_path / "sweep").mkdir()
    names = "point,client.rate,round,test_accuracy,bytes_up_total,bytes_down_total"
    (tmp_path / "sweep/sweep.csv").write_text(f"{names}\n0,0.1,1,0.5,10,10\n")
    printed_by("plot", tmp_path)


def test_training_without_a_server(tmp_path):
    printed = printed_by("alone", tmp_path)
    shown = pages.shown_with("no server:", "docs/running.md")
    assert shown[1:4] == printed[1:4]
    pages.same_tables([line for line in shown[4:] if line != "..."], printed[4:])


def test_a_sweep(tmp_path):
    printed = [line.split() for line in printed_by("sweep", tmp_path)]
    lines = pages.shown_with("deviation over seeds", "docs/sweeps.md")
    shown = [line.split() for line in lines if line != "..."]
    assert shown[0][:-2] == printed[0][:-2]  # devices are those of the machine
    at = printed.index(shown[1])
    means = {tuple(line[:2]): float(line[2]) for line in printed[at + 1 : -2]}
    assert len(means) == len(shown[2:])
    for *setting, mean, _, _ in shown[2:]:
        assert abs(means[tuple(setting)] - float(mean)) < 2


def test_a_plan(tmp_path):
    shown = pages.shown_with("without a server", "docs/running.md")
    assert printed_by("plan", tmp_path)[1:] == shown[1:]  # devices are the machine's


def test_the_spectra_of_a_run(tmp_path):
    printed_by("train and keep", tmp_path)
    printed = printed_by("spectrum", tmp_path)
    shown = pages.shown_with("intr. dim.", "docs/attacks.md")
    assert printed[0] == shown[0] and len(printed) == 6  # with rounds 0 to 200
    for ours, theirs in zip(shown[1:3], printed[1:3], strict=True):
        ours, theirs = ([float(x) for x in line.split()] for line in (ours, theirs))
        assert theirs[0] == ours[0]
        assert abs(theirs[1] / ours[1] - 1) < 0.2 and abs(theirs[8] - ours[8]) < 0.02
        for column in (4, 6, 7):  # what the intrinsic dimension is, at least, at most
            assert abs(theirs[column] / ours[column] - 1) < 0.2


def test_calibrating(tmp_path):
    shown = pages.shown_with("noise multiplier by", "docs/privacy.md")
    assert printed_by("calibrate", tmp_path)[: len(shown) - 1] == shown[:-1]


def test_comparing_bits(tmp_path):
    shown = pages.shown_with("bytes a message", "docs/privacy.md")
    printed = printed_by("compare bits", tmp_path)
    assert "..." in shown
    assert [line for line in printed if line in shown] == [
        line for line in shown if line != "..."
    ]


def test_private_training_and_its_release(tmp_path):
    printed = printed_by("train in private", tmp_path)
    shown = pages.shown_with("privacy per client", "docs/privacy.md")
    assert shown[1:7] == printed[1:7]
    # Noise and cohorts are another draw in every run; rounds and epsilons are not.
    table = [printed[8].split(), printed[12].split()]
    assert shown[9] == "..."
    for ours, theirs in zip(map(str.split, (shown[8], shown[10])), table, strict=True):
        assert (ours[0], ours[-1]) == (theirs[0], theirs[-1])
        assert [float(x) for x in theirs[4:6]] == pytest.approx(
            [float(x) for x in ours[4:6]], rel=0.1
        )
    assert float(table[-1][3]) > 0.9
    assert shown[-1] == printed[-2]
    assert pages.shown_with("privacy spent", "README.md") == shown[-2:]
    printed_by("release", tmp_path)
    model = (tmp_path / "private_model" / "MODEL.md").read_text()
    first, *rest = pages.shown_with("differentially private", "docs/privacy.md")
    assert first.removesuffix(" ...") in model and "\n".join(rest) in model
