"""A file of pairs of words that grows line by line, each on the disk when it returns.

>>> import pathlib, tempfile
>>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs"
>>> add(path, "3.MODEL.0", "ab12")
>>> read(path)
[['3.MODEL.0', 'ab12']]
"""

import errno
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
    """Adds a pair to a file that was read, or nothing, as where a disk is full."""
    line = f"{name} {value}\n".encode()
    with open(path, "ab", buffering=0) as file:
        size = file.tell()
        try:
            if file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(file.fileno())
        except BaseException:  # half a line would swallow the next one
            os.truncate(path, size)
            raise
