"""The pages of the documentation: what they show, and how to run it."""

import os
import pathlib
import re
import shlex

from tests.launching import ROOT, launch_python

PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs/models").glob("*.md")),
    ]
}
RESULTS = [
    str(path.relative_to(ROOT)) for path in sorted((ROOT / "results").rglob("*.md"))
]


def blocks(language: str, page: str) -> list[str]:
    """Returns the code blocks of one language on a page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], flags=re.DOTALL)


def shown_with(text: str, page: str) -> list[str]:
    """Returns the lines of the printed block of a page that has this text."""
    return next(b for b in blocks("text", page) if text in b).splitlines()


def commands(page: str) -> list[list[str]]:
    """Returns the words of every command of a page."""
    lines = (line for block in blocks("bash", page) for line in block.splitlines())
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def command_of(text: str, page: str) -> list[str]:
    """Returns the one command of a page in which a text stands."""
    (found,) = [words for words in commands(page) if text in " ".join(words)]
    return found


def run(*arguments: str, check: bool = True, **variables: str) -> str:
    """Runs python with arguments from the project's folder; returns what it printed."""
    done = launch_python(*arguments, **variables)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def placed(words: list[str], folder: pathlib.Path) -> list[str]:
    """Returns the arguments of a command, with what it writes below a folder."""
    data = os.environ.get("FL_SKETCH_DATA", "DATA")
    return [w.replace("/tmp", str(folder)).replace("DATA", data) for w in words[1:]]


def same_tables(shown: list[str], printed: list[str]) -> None:
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
