"""Where the launches and their configs lie, so that commands run in any folder."""

import pathlib
import re
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parent.parent


def with_configs(argv: Sequence[str]) -> list[str]:
    """Returns arguments in which configs of the clone are found from any folder.

    A file of the current folder with the same name comes first.

    Args:
      argv: the words of a command.
    """
    found, flag = [], re.compile(r"--?config(=|$)")
    for previous, argument in zip(["", *argv], argv, strict=False):
        head = flag.match(argument)
        name = argument[head.end() :] if head else argument
        file = name.partition(":")[0]
        asked = head if argument.count("=") else flag.fullmatch(previous)
        ours = asked and file and not pathlib.Path(file).exists()
        if ours and (ROOT / file).is_file():
            argument = argument.replace(name, str(ROOT / name))
        found.append(argument)
    return found
