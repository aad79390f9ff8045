"""Files that are whole or not there: readers never see half of one."""

import contextlib
import csv
import hashlib
import os
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Forms of pictures, and what in their files says when and by what they were made.
PICTURES = {"png": ("Software",), "pdf": ("CreationDate",), "svg": ("Date",)}


def user_cache() -> pathlib.Path:
    """Returns fl_sketch in XDG_CACHE_HOME, or in ~/.cache; it need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(cache).expanduser() / "fl_sketch"


def writable_folder(path: str | os.PathLike, name: str = "workdir") -> pathlib.Path:
    """Returns a folder, made with its parents where it is missing, for files to come.

    Args:
      path: path of the folder.
      name: the option by which the user named it, for the complaint.

    Raises:
      ValueError: in one line, unless files can be written there.
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
        msg = f"Expected {name} to be writable, got {name}={path} "
        raise ValueError(msg + f"({error.strerror}).") from None
    return folder


def writable_file(path: str | os.PathLike, name: str = "out") -> pathlib.Path:
    """Returns a path at which a file can be written; nothing is written yet.

    Args:
      path: path of the file, which may exist.
      name: the option by which the user named it, for the complaint.

    Raises:
      ValueError: in one line, unless its folder is there and can be written.
    """
    file = pathlib.Path(path)
    if not str(path) or file.is_dir() or not file.parent.is_dir():
        msg = f"Expected {name} to name a file in a folder, got {name}='{path}'."
        raise ValueError(msg)
    writable_folder(file.parent, name)
    return file


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields where to write what takes the place of `path` when all went well.

    It gets that name when it is on the disk, also if the power fails then.
    """
    path = pathlib.Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)  # of somebody who was killed, or a planted link
        os.close(unlinked(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        yield partial
        flush(partial)
        os.replace(partial, path)
        flush(path.parent)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # which a full disk does not name
        raise


def unlinked(path: str | os.PathLike, flags: int) -> int:
    """Opens a file that is no symbolic link, to be the `opener` of `open`.

    Args:
      path: path of the file.
      flags: the flags of `os.open`.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def write_private(path: pathlib.Path, content: bytes, partial: pathlib.Path) -> None:
    """Writes a file that its owner alone can read, by way of `partial`, to the disk."""
    partial.unlink(missing_ok=True)  # of a process that was killed while writing
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    handle = os.open(partial, flags, 0o600)
    try:
        os.write(handle, content)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(partial, path)
    flush(path.parent)


def flush(path: str | os.PathLike) -> None:
    """Waits until a file or a folder, `path`, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: str | os.PathLike) -> str:
    """Returns a SHA-256 of the bytes of the file `path`, which need not fit memory."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes `text` to the file `path`, in one step as all writers here do."""
    with replacing(path) as partial:
        partial.write_text(text)


def read_rows(path: str | os.PathLike, *, whole: bool = False) -> list[dict[str, str]]:
    """Returns the rows of the csv file `path`: dictionaries of strings by column.

    If only `whole` ones are wanted, a last line without an end is left out, which
    somebody is writing, or was when he was stopped.
    """
    with open(path, newline="") as file:
        lines = (line for line in file if not whole or line.endswith("\n"))
        return list(csv.DictReader(lines))


def write_rows(path: str | os.PathLike, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes `rows` as csv to the file `path`, under all names that any of them has.

    Columns come in the order in which names first appear; a name that a row lacks is
    an empty cell.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path) as partial, open(partial, "w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_figure(path: str | os.PathLike, figure: Any) -> None:
    """Writes a figure of matplotlib, the same bytes for the same picture.

    Args:
      path: path of the file, which ends in one of `PICTURES`.
      figure: a `matplotlib.figure.Figure`.
    """
    from matplotlib import rc_context

    form = pathlib.Path(path).suffix.removeprefix(".")
    dated = {name: None for name in PICTURES[form]}
    with replacing(path) as partial, rc_context({"svg.hashsalt": "fl_sketch"}):
        figure.savefig(partial, dpi=110, format=form, metadata=dated)
