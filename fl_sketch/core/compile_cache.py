"""Keeps compiled programs in a folder, so that a second start is quick.

jax writes each program into its file bit by bit: of a process that was killed, on a
full disk, or while another one reads, half a program would stay there. So a process
works in a folder of its own that begins with links to all that is kept, and when it
ends, what it compiled is checked and moved over in one step. Machine code is of a kind
of processor, and code that others could write must not run: the folder is of this kind
of processor and of this user alone.
"""

import contextlib
import fcntl
import hashlib
import importlib
import os
import pathlib
import platform
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from types import ModuleType

import jax
from jax.experimental.compilation_cache import compilation_cache

from fl_sketch.core import files

MOST = 2**30  # bytes; the programs that were not used for longest go first
SHORTEST = 0.1  # seconds of compilation that are worth a file
LOCK = ".lock"  # held by the process to which a folder belongs, as long as it lives


@contextlib.contextmanager
def kept(folder: str | None) -> Iterator[None]:
    """Keeps what is compiled inside, if it can; a run never fails because it cannot.

    Args:
      folder: the folder; None: the one that jax has been given, or else
        fl_sketch/compiled in the user's cache directory; empty: none.
    """
    given = _of_jax()
    if folder is None and given:
        yield
        return
    with contextlib.ExitStack() as stack:
        own = None
        if folder != "":
            try:
                own = stack.enter_context(_own(folder))
            except (OSError, RuntimeError) as error:  # no disk, no home
                print(f"note: compiled programs are not kept: {error}", file=sys.stderr)
        stack.callback(_use, given)
        _use(own)
        yield


def _of_jax() -> str | None:
    """Returns the folder that jax has been given, by the environment for example."""
    return jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]


def _use(folder: str | None) -> None:
    """Makes jax use another folder from now on; None: none."""
    jax.config.update("jax_compilation_cache_dir", folder)
    compilation_cache.reset_cache()


@contextlib.contextmanager
def _own(folder: str | None) -> Iterator[str]:
    """Yields a folder of this process, whose programs are kept in the end."""
    place = files.user_cache() / "compiled" if folder is None else folder
    shared = _owned(place)
    for left in shared.glob("of-*"):  # of processes that were killed
        with contextlib.suppress(OSError), _held(left):
            _hand_over(left, shared)
    new = pathlib.Path(tempfile.mkdtemp(prefix="new-", dir=shared))
    with _held(new):  # before others could take it for one of a killed process
        own = new.rename(new.with_name(f"of-{new.name}"))
        for path in shared.glob("*-cache"):
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                os.link(path, own / path.name)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)
        # XLA's own caches for GPUs would bring this process's folder into every key.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
        warnings.filterwarnings("ignore", "Error writing persistent compilation cache")
        try:
            yield str(own)
        finally:
            with contextlib.suppress(OSError):
                _hand_over(own, shared)
                prune(shared)


def processor() -> str:
    """Returns a short name of this kind of processor: what it is and what it can."""
    parts = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        said = {line.partition(":")[0].strip(): line for line in reversed(lines)}
        parts += [said.get(name, "") for name in ("model name", "flags", "Features")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _owned(folder: str | os.PathLike) -> pathlib.Path:
    """Returns the folder for this kind of processor; raises if others may write it.

    Programs that are packed in different ways have the same names: each way has its
    own folder.
    """
    name = f"{processor()}-{_packer().__name__.rpartition('.')[2]}"
    shared = pathlib.Path(folder).expanduser() / name
    shared.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = shared.stat()
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        msg = f"{shared} can be written by others"
        raise PermissionError(msg)
    return shared


@contextlib.contextmanager
def _held(own: pathlib.Path) -> Iterator[None]:
    """Holds a process's folder; raises a BlockingIOError if its process lives."""
    with open(own / LOCK, "a", opener=files.unlinked) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _hand_over(own: pathlib.Path, shared: pathlib.Path) -> None:
    """Moves whole programs over, and removes what is left."""
    for path in own.glob("*-cache"):
        if not (shared / path.name).exists() and _whole(path):
            path.replace(shared / path.name)
        else:
            path.unlink()
    (own / LOCK).unlink()
    own.rmdir()


def prune(folder: pathlib.Path) -> None:
    """Removes the programs in `folder` that were not used for longest, above `MOST`."""
    ages = {path: path.stat() for path in folder.glob("*-cache")}
    total = sum(about.st_size for about in ages.values())
    for path in sorted(ages, key=lambda path: ages[path].st_atime):
        if total > MOST:
            path.unlink()
            total -= ages[path].st_size


def _packer() -> ModuleType:
    """Returns the module with which jax packs programs: the first that is there."""
    for name in ("compression.zstd", "zstandard"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    return zlib


def _whole(path: pathlib.Path) -> bool:
    """Returns whether a file has all of a program; then it is on the disk as well."""
    with open(path, "rb") as file, contextlib.suppress(Exception):  # theirs, by packer
        _packer().decompress(file.read())
        os.fsync(file.fileno())
        return True
    return False
