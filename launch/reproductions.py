"""What is behind each folder of results: its title and the commands of its README.

They stand in the first block of shell lines there, below a comment that says how long
they take; WORKDIR is the folder that is given and DATA that of the raw data sets.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys
from typing import NamedTuple

from fl_sketch.core import files

RESULTS = pathlib.Path(__file__).parent.parent / "results"


class Reproduction(NamedTuple):
    """One folder of results.

    Attributes:
      title: the paper, and what of it.
      time: the time that the commands take.
      commands: the words that follow `python -m` in each.
    """

    title: str
    time: str
    commands: tuple[tuple[str, ...], ...]


def read(text: str) -> Reproduction:
    """Returns what the text of a README says."""
    title = text.splitlines()[0].removeprefix("# ")
    if "```bash\n" not in text:
        return Reproduction(title, "its command is gone", ())
    first, *lines = text.split("```bash\n")[1].split("```")[0].splitlines()
    joined = "\n".join(lines).replace("\\\n", " ")
    words = [tuple(shlex.split(line)) for line in joined.splitlines()]
    return Reproduction(
        title, first.removeprefix("# "), tuple(command[2:] for command in words)
    )


def all_of(folder: pathlib.Path = RESULTS) -> dict[str, Reproduction]:
    """Returns what stands in every folder of results below `folder`, by its name."""
    places = sorted(folder.glob("*/README.md"))
    return {path.parent.name: read(path.read_text()) for path in places}


def run(one: Reproduction, folder: str | os.PathLike, data: str) -> int:
    """Runs the commands up to the first that fails; returns its exit code, or 0.

    Args:
      one: the reproduction.
      folder: the folder for the results, in place of WORKDIR.
      data: the folder of raw data sets, in place of DATA.
    """
    files.writable_folder(folder)
    places = {"WORKDIR": str(folder), "DATA": data}
    for command in one.commands:
        words = [
            re.sub("WORKDIR|DATA", lambda found: places[found[0]], word)
            for word in command
        ]
        print("python -m", shlex.join(words), flush=True)
        if failed := subprocess.run([sys.executable, "-m", *words]).returncode:
            return failed
    return 0
