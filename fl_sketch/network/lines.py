"""A file of pairs of words that grows line by line, each on the disk when it returns.

>>> import pathlib, tempfile
>>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs"
>>> add(path, "3.MODEL.0", "ab12")
>>> read(path)
[['3.MODEL.0', 'ab12']]
"""

import os
import pathlib


def read(path: pathlib.Path) -> list[list[str]]:
    """Returns the pairs of a file; cuts off a line that was not finished."""
    if not path.exists():
        return []
    whole = path.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):
        os.truncate(path, end)
    return [line.split(" ") for line in whole[:end].decode().splitlines()]


def add(path: pathlib.Path, name: str, value: str) -> None:
    """Adds a pair to a file that was read."""
    with open(path, "a") as file:
        file.write(f"{name} {value}\n")
        file.flush()
        os.fsync(file.fileno())
