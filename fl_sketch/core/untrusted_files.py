"""Readers for foreign files: errors are one line, with the name of the file.

All errors of the libraries become a `ValueError`, and nothing is unpacked before it is
known to fit in memory: a megabyte of zeros may expand to a terabyte.
"""

import contextlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from fl_sketch.core import free_memory

SMALL, TIMES = 2**26, 20  # a file of weights has SMALL + TIMES * size bytes at most
PIXELS = 2**26  # of one picture


@contextlib.contextmanager
def reading(where: str | os.PathLike, what: str = "") -> Iterator[None]:
    """Names the file `where` in errors that are raised inside.

    A missing file and errors of this project are not changed. Any other error becomes a
    `ValueError` in one line, with `what` the file should be.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        if isinstance(error, ValueError) and text.startswith(("Expected", "config.")):
            raise
        what = what or "to be a whole file of the kind in its name"
        kind = type(error).__name__
        msg = f"Expected {where} {what}, got {kind}{text and ': '}{text}."
        raise ValueError(msg) from None


def picture(content: bytes, mode: str, formats: Sequence[str]) -> np.ndarray:
    """Returns the pixels of a picture in one of the `formats`, of 8 bits a channel.

    `mode` is Pillow's name for its channels. Pillow knows dozens of formats, and some
    of them start other programs.
    """
    from PIL import Image  # only data preparation needs it

    with Image.open(io.BytesIO(content), formats=list(formats)) as opened:
        if opened.width * opened.height > PIXELS:
            size = f"{opened.width} x {opened.height}"
            msg = f"Expected pictures of at most {PIXELS} pixels, got one of {size}."
            raise ValueError(msg)
        if opened.mode[0] in "IF":
            msg = f"Expected pictures of 8 bits a channel, got mode {opened.mode}."
            raise ValueError(msg)
        return np.asarray(opened if opened.mode == mode else opened.convert(mode))


@contextlib.contextmanager
def arrays_in(stream: BinaryIO, where: str | os.PathLike) -> Iterator[Any]:
    """Yields the arrays of an opened npz file of weights, none unpacked yet.

    All together must not be far larger than the file, as nothing is that is worth
    training, and must fit into memory. Errors name the file as `where`.
    """
    size = stream.seek(0, os.SEEK_END)
    unpacked = require_arrays_fit(where, stream)
    if unpacked > SMALL + TIMES * size:
        msg = (
            f"Expected {where} to unpack to at most {TIMES} times its size, got "
            f"{unpacked} bytes from {size}."
        )
        raise ValueError(msg)
    stream.seek(0)
    with np.load(stream, allow_pickle=False) as arrays:
        yield _Arrays(arrays)


class _Arrays(Mapping):
    """The arrays of an npz file, of which none is of entries without a byte.

    A file of a kilobyte can say that it has 10^13 of these.
    """

    def __init__(self, found: Any):
        self._found = found

    def __getitem__(self, name: str) -> np.ndarray:
        array = self._found[name]
        if not array.dtype.itemsize:
            msg = f"{name} has entries of no bytes"
            raise ValueError(msg)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._found.files)

    def __len__(self) -> int:
        return len(self._found.files)


def require_arrays_fit(file: str | os.PathLike, stream: BinaryIO | None = None) -> int:
    """Returns the bytes of all arrays of an npz file, for which there must be memory.

    The file is opened if there is no `stream` of it.
    """
    with zipfile.ZipFile(stream or file) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    free = free_memory.of_host()
    if size > free:
        msg = (
            f"Expected {file} to fit into memory when it is unpacked, got "
            f"{size / 1e9:.3g} GB where {free / 1e9:.3g} GB are free."
        )
        raise ValueError(msg)
    return size
