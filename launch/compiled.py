"""Compiled programs on disk, so that a second start is quick.

jax's persistent cache keeps them. Machine code is of a kind of processor, and code that
others could write must not run: the folder is of this kind of processor and of this
user alone. A program that jax cannot read it compiles again, but half of one, of a
killed process or a full disk, would stay in its place: the folder is emptied then.
"""

import contextlib
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache

from fl_sketch.core import files
from fl_sketch.core.platforms import processor

MOST = 2**30  # bytes; the programs that were not used for longest go first
SHORTEST = 0.1  # seconds of compilation that are worth a file
ERRORS = "Error (reading|writing) persistent compilation cache"  # as jax warns of them
HALF = re.compile("Error (reading|writing .*OSError)")  # after which a program is half


@contextlib.contextmanager
def kept(folder: str | None) -> Iterator[None]:
    """Keeps what is compiled inside; a run never fails because it cannot.

    Args:
      folder: the folder; None: the one that jax has been given, or else
        fl_sketch/compiled in the user's cache directory; empty: none.
    """
    before = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if folder is None and before:
        yield
        return
    programs = None
    if folder != "":
        try:
            programs = private_folder(folder or files.user_cache() / "compiled")
            prune(programs)
        except (OSError, RuntimeError) as error:  # no disk, no home
            print(f"note: compiled programs are not kept: {error}", file=sys.stderr)
    _use(programs)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    try:
        with _emptied_after_errors(programs):
            yield
    finally:
        _use(before)


def private_folder(folder: str | os.PathLike) -> pathlib.Path:
    """Returns a folder of this processor and Python; raises if others may write it."""
    name = f"{processor()}-{sys.implementation.cache_tag}"
    private = pathlib.Path(folder).expanduser() / name
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = private.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        msg = f"{private} can be written by others"
        raise PermissionError(msg)
    return private


def prune(folder: pathlib.Path) -> None:
    """Removes the programs that were not used for longest, above `MOST` bytes."""
    status: dict[pathlib.Path, os.stat_result] = {}
    for path in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            status[path] = path.stat()
    total = sum(each.st_size for each in status.values())
    for path in sorted(status, key=lambda path: status[path].st_atime):
        if total > MOST:
            path.unlink(missing_ok=True)
            total -= status[path].st_size


def _use(folder: pathlib.Path | None) -> None:
    """Makes jax use another folder from now on; None: none."""
    jax.config.update("jax_compilation_cache_dir", folder and str(folder))
    compilation_cache.reset_cache()


@contextlib.contextmanager
def _emptied_after_errors(folder: pathlib.Path | None) -> Iterator[None]:
    """Silences jax's errors with its cache, and empties it after one of half a file."""
    damaged, show = False, warnings.showwarning

    def noted(message, *rest, **named):
        nonlocal damaged
        if re.match(ERRORS, str(message)):
            damaged |= bool(HALF.match(str(message)))
        else:
            show(message, *rest, **named)

    with warnings.catch_warnings():
        warnings.filterwarnings("always", ERRORS)
        warnings.showwarning = noted
        try:
            yield
        finally:
            for path in folder.glob("*-cache") if folder and damaged else ():
                path.unlink(missing_ok=True)
