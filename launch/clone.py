"""The folder of the clone, so that commands find its configs from any folder."""

import pathlib
import re
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parent.parent


def with_configs(argv: Sequence[str]) -> list[str]:
    """Returns arguments in which configs of the clone are found from any folder.

    A file of the current folder with the same name comes first. What stands in two
    words stands in one afterwards, as --config=FILE.

    Args:
      argv: the words of a command.
    """
    words, found = iter(argv), []
    for word in words:
        if word in ("-config", "--config"):
            word = f"--config={next(words, '')}"
        name = re.match(r"--?config=(([^:]+).*)", word)
        if name and not pathlib.Path(name[2]).exists() and (ROOT / name[2]).is_file():
            word = f"--config={ROOT / name[1]}"
        found.append(word)
    return found
