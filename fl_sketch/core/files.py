"""Files that are written completely or not at all."""

import contextlib
import csv
import hashlib
import os
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Formats of pictures, and their metadata about the time and the program.
PICTURES = {"png": ("Software",), "pdf": ("CreationDate",), "svg": ("Date",)}


def user_cache() -> pathlib.Path:
    """Returns fl_sketch in XDG_CACHE_HOME, or in ~/.cache; it need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(cache).expanduser() / "fl_sketch"


def writable_folder(path: str | os.PathLike, name: str = "workdir") -> pathlib.Path:
    """Returns a folder for new files, created with its parents if necessary.

    Raises a ValueError, with the option's `name`, unless files can be written there.
    """
    if not str(path):
        msg = f"Expected {name} to name a folder, got {name}=''."
        raise ValueError(msg)
    folder = pathlib.Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        msg = f"Expected {name} to be writable, got {name}={path} ({error.strerror})."
        raise ValueError(msg) from None
    return folder


def writable_file(path: str | os.PathLike, name: str = "out") -> pathlib.Path:
    """Returns the path of a file that can be written, in a folder that exists."""
    file = pathlib.Path(path)
    if not str(path) or file.is_dir() or not file.parent.is_dir():
        msg = f"Expected {name} to name a file in a folder, got {name}='{path}'."
        raise ValueError(msg)
    writable_folder(file.parent, name)
    return file


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields a path to write to, which replaces `path` on success.

    The file gets its name after it is on the disk, so it survives a power failure. An
    OSError has the name of the file, also where the disk is full.
    """
    path = pathlib.Path(path)
    partial = path.with_name(f".{path.name}.partial")
    with _by_way_of(partial, path):
        os.close(unlinked(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        yield partial
        flush(partial)


@contextlib.contextmanager
def _by_way_of(partial: pathlib.Path, path: pathlib.Path) -> Iterator[None]:
    """Renames a complete file to its name, or removes an incomplete one."""
    try:
        partial.unlink(missing_ok=True)  # of a killed process, or a planted link
        yield
        os.replace(partial, path)
        flush(path.parent)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def unlinked(path: str | os.PathLike, flags: int) -> int:
    """Opens a file that is not a symbolic link; it is an `opener` for `open`."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def write_private(path: pathlib.Path, content: bytes, partial: pathlib.Path) -> None:
    """Writes a file that only its owner can read, through the file `partial`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    # By its handle: the name may be another file's by now, where others may write.
    with (
        _by_way_of(partial, path),
        os.fdopen(os.open(partial, flags, 0o600), "wb") as file,
    ):
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush(path: str | os.PathLike) -> None:
    """Waits until a file or a folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file, which need not fit in memory."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes `text` to a file, whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(text)


def is_column(name: Any) -> bool:
    """Returns whether a csv file can have a column of this name, as it is."""
    if not isinstance(name, str) or not name:
        return False
    return name.isprintable() and not {*name} & {*',"'}


def read_rows(path: str | os.PathLike, *, whole: bool = False) -> list[dict[str, str]]:
    """Returns the rows of a csv file: dictionaries of strings by column.

    With `whole`, a last line without an end, which is still being written, is left out.
    """
    with open(path, newline="") as file:
        lines = (line for line in file if not whole or line.endswith("\n"))
        return list(csv.DictReader(lines))


def write_rows(path: str | os.PathLike, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes `rows` as csv, whole or not at all.

    There is a column for every name in any row, in the order of first appearance. A
    name that a row lacks is an empty cell.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path) as partial, open(partial, "w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_figure(path: str | os.PathLike, figure: Any) -> None:
    """Writes a `matplotlib.figure.Figure`, the same bytes for the same picture.

    The ending of the path is one of `PICTURES`.
    """
    from matplotlib import rc_context

    suffix = pathlib.Path(path).suffix.removeprefix(".")
    undated = {name: None for name in PICTURES[suffix]}
    with replacing(path) as partial, rc_context({"svg.hashsalt": "fl_sketch"}):
        figure.savefig(partial, dpi=110, format=suffix, metadata=undated)
