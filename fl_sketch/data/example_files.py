"""Examples for a model that is trained, from files: images, arrays, and lines of text.

>>> import tempfile
>>> with tempfile.NamedTemporaryFile(suffix=".npy") as file:
...     np.save(file, np.zeros((8, 8, 1), np.float32))
...     _ = file.seek(0)
...     arrays(file.name, (8, 8, 1)).shape
(1, 8, 8, 1)
"""

import os
import pathlib
from collections.abc import Sequence

import numpy as np

from fl_sketch.core import untrusted_files, validate

ENDINGS = (".png", ".npy", ".npz")  # of files that are no texts
INPUTS = "inputs"  # the name of the array, in an npz file of several
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's names for numbers of channels


def arrays(path: str | os.PathLike, shape: Sequence[int]) -> np.ndarray:
    """Returns the examples in a png, npy or npz file: an array `[n, *shape]`.

    Args:
      shape: the shape of an example. A file may hold one example, or many.

    Raises:
      FileNotFoundError, ValueError: in one line, for any other file.
    """
    file = _there(path)
    if file.suffix not in ENDINGS:
        msg = f"Expected a file that ends in {', '.join(ENDINGS)}, got file={path}."
        raise ValueError(msg)
    with untrusted_files.reading(file, f"to hold inputs of shape {tuple(shape)}"):
        found = _picture(file, shape) if file.suffix == ".png" else _numpy(file)
    if found.shape == tuple(shape):
        found = found[None]
    if found.shape[1:] != tuple(shape) or not len(found):
        msg = (
            f"Expected {file} to hold one input of shape {tuple(shape)} or several, "
            f"got {found.dtype} of shape {found.shape}."
        )
        raise ValueError(msg)
    return found


def lines(path: str | os.PathLike) -> list[str]:
    """Returns the texts of a file, one in each line.

    Raises:
      FileNotFoundError, ValueError: in one line, for a file that holds no text.
    """
    file = _there(path)
    with untrusted_files.reading(file, "to hold a text in each line, in UTF-8"):
        found = file.read_text(encoding="utf-8").splitlines()
    if not found:
        msg = f"Expected {file} to hold a text in each line, got none."
        raise ValueError(msg)
    return found


def _there(path: str | os.PathLike) -> pathlib.Path:
    file = pathlib.Path(path).expanduser()
    if not file.is_file():
        none = validate.absent(file)
        msg = f"Expected file to name a file, got file={path}{none}."
        raise FileNotFoundError(msg)
    return file


def _picture(file: pathlib.Path, shape: Sequence[int]) -> np.ndarray:
    channels = shape[-1] if len(shape) == 3 else 0
    if channels not in MODES:
        msg = f"Expected npy or npz for inputs of shape {tuple(shape)}, got file="
        raise ValueError(msg + f"{file}.")
    pixels = untrusted_files.picture(file.read_bytes(), MODES[channels], ("PNG",))
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _numpy(file: pathlib.Path) -> np.ndarray:
    if file.suffix == ".npy":
        untrusted_files.require_room(file, file.stat().st_size)
        return np.load(file, allow_pickle=False)
    untrusted_files.require_arrays_fit(file)
    with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as archive:
        names = archive.files
        name = names[0] if len(names) == 1 else INPUTS
        if name not in names:
            msg = f"Expected {file} to hold one array or {INPUTS}, got "
            raise ValueError(msg + f"{', '.join(names) or 'none'}.")
        return archive[name]
