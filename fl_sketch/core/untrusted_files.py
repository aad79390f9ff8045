"""Files of others, read so that what is wrong with one is said in a line with its name.

Whatever the library under a reader raises becomes a `ValueError`, and nothing is
unpacked before it is known to fit: a megabyte of zeros may claim to be a terabyte.
"""

import contextlib
import gzip
import io
import math
import os
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fl_sketch.core import free_memory

MOST = 2**30  # bytes of one file as it is unpacked, where nothing else bounds it
BLOCK = 2**20  # bytes that are unpacked at a time
PIXELS = 2**26  # of one picture


@contextlib.contextmanager
def reading(where: str | os.PathLike, what: str = "") -> Iterator[None]:
    """Says of an error which file it is about.

    Args:
      where: the file.
      what: the words that say what it should be.

    Raises:
      ValueError: in one line, for whatever is raised within but a missing file, or a
        complaint of this project.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        if isinstance(error, ValueError) and text.startswith(("Expected", "config.")):
            raise
        said = what or "to be whole, and what its name says"
        kind = type(error).__name__
        msg = f"Expected {where} {said}, got {kind}{text and ': '}{text}."
        raise ValueError(msg) from None


def require_room(where: str | os.PathLike, size: int) -> None:
    """Raises unless this host has memory for what a file becomes.

    Args:
      where: the file.
      size: the bytes that it has, unpacked.
    """
    free = free_memory.of_host()
    if size > free:
        msg = (
            f"Expected {where} to fit into memory when it is unpacked, got "
            f"{size / 1e9:.3g} GB where {free / 1e9:.3g} GB are free."
        )
        raise ValueError(msg)


def unzipped(file: str | os.PathLike, most: int) -> bytes:
    """Returns the content of a gzip `file`, which is `most` bytes long at most."""
    content = bytearray()
    with gzip.open(file) as stream:
        while part := stream.read(BLOCK):
            content += part
            if len(content) > most:
                msg = (
                    f"Expected {file} to have at most {most} bytes, got more, unpacked."
                )
                raise ValueError(msg)
    return bytes(content)


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Returns the content of the file `name` in an `archive`."""
    size = archive.getinfo(name).file_size
    if size > MOST:
        msg = (
            f"Expected {name} in {archive.filename} to have at most {MOST} bytes, got "
        )
        raise ValueError(msg + f"{size}.")
    return archive.read(name)


def members(file: str | os.PathLike, part: str) -> bytes:
    """Returns the content of those files in a tar archive that have a part of a name.

    Args:
      file: the archive.
      part: the part; files come in the order of their names.
    """
    with tarfile.open(file) as archive:
        found = [one for one in archive.getmembers() if part in one.name]
        if sum(one.size for one in found) > MOST:
            msg = f"Expected {file} to have at most {MOST} bytes in {part}, got more."
            raise ValueError(msg)
        opened = map(archive.extractfile, sorted(found, key=lambda one: one.name))
        return b"".join(one.read() for one in opened if one)


def picture(content: bytes, mode: str, formats: Sequence[str]) -> np.ndarray:
    """Returns the pixels of a picture.

    Args:
      content: the bytes of its file.
      mode: the name that Pillow has for its channels.
      formats: the formats that it may have: Pillow knows dozens, of which some start
        other programs.

    Raises:
      ValueError: for a picture that is too large, before it is unpacked.
    """
    from PIL import Image  # only preparing needs it

    with Image.open(io.BytesIO(content), formats=list(formats)) as opened:
        if opened.width * opened.height > PIXELS:
            msg = f"Expected pictures of at most {PIXELS} pixels, got one of "
            raise ValueError(msg + f"{opened.width} x {opened.height}.")
        return np.asarray(opened if opened.mode == mode else opened.convert(mode))


def require_arrays_fit(file: str | os.PathLike) -> None:
    """Raises unless this host has memory for all arrays of an npz `file`."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        require_room(file, sum(one.file_size for one in entries))
        for one in entries:
            with archive.open(one) as stream:
                size = _claimed(stream)
            if size > one.file_size:
                msg = f"Expected {one.filename} in {file} to be whole, got a head that "
                raise ValueError(msg + f"claims {size} bytes, of {one.file_size}.")


def _claimed(stream: Any) -> int:
    """Returns how many bytes an npy file says that its array has."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_2_0
    if version == (1, 0):
        read = np.lib.format.read_array_header_1_0
    shape, _, kind = read(stream)
    return math.prod(shape) * kind.itemsize


def require_only(found: Any, start: str, where: str | os.PathLike) -> None:
    """Raises for a class that a json file names, and that is none of a package.

    TFDS imports what `features.json` names, so that a folder given by somebody else
    would run his code.

    Args:
      found: what the json file holds, or a part of it.
      start: the beginning that names of classes may have.
      where: the file.
    """
    if isinstance(found, list):
        for one in found:
            require_only(one, start, where)
    if not isinstance(found, dict):
        return
    for key, value in found.items():
        named = key in ("pythonClassName", "type") and isinstance(value, str)
        if named and "." in value and not value.startswith(start):
            msg = f"Expected {where} to name classes of {start}* alone, got {value}."
            raise ValueError(msg)
        require_only(value, start, where)
