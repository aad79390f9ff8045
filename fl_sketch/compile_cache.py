"""Keeps compiled programs in a folder, so that a second start is quick.

jax writes each program into its file bit by bit: of a process that was killed, on a
full disk, or while another one reads, half a program would stay there. So a process
works in a folder of its own that begins with links to all that is kept, and when it
ends, what it compiled is checked and moved over in one step. Machine code is of a kind
of processor, and code that others could write must not run: the folder is of this kind
of processor and of this user alone.
"""

import contextlib
import hashlib
import os
import pathlib
import platform
import socket
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterator

import jax

from fl_sketch import files

MOST = 2**30  # bytes; the programs that were not used for longest go first
SHORTEST = 0.1  # seconds of compilation that are worth a file
ZSTD = bytes.fromhex("28b52ffd")


@contextlib.contextmanager
def kept(folder: str | None) -> Iterator[None]:
    """Keeps what is compiled inside, if it can; a run never fails because it cannot.

    Args:
      folder: the folder; None: the one that jax has been given, or else
        fl_sketch/compiled in the user's cache directory; empty: none.
    """
    given = _of_jax()
    if folder == "":
        jax.config.update("jax_compilation_cache_dir", None)
    if folder == "" or (folder is None and given):
        yield
        return
    try:
        place = files.user_cache() / "compiled" if folder is None else folder
        shared = _owned(place)
        own = _begin(shared)
    except OSError as error:
        print(f"note: compiled programs are not kept: {error}", file=sys.stderr)
        yield
        return
    jax.config.update("jax_compilation_cache_dir", str(own))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)
    # XLA's own caches for GPUs would bring this process's folder into every key.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation")
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        _hand_over(own, shared)


def _of_jax() -> str | None:
    """Returns the folder that jax has been given, by the environment for example."""
    return jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]


def processor() -> str:
    """Returns a short name of this kind of processor: what it is and what it can."""
    parts = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        said = {line.partition(":")[0].strip(): line for line in reversed(lines)}
        parts += [said.get(name, "") for name in ("model name", "flags", "Features")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _owned(folder: str | os.PathLike) -> pathlib.Path:
    """Returns the folder for this kind of processor; raises if others may write it."""
    shared = pathlib.Path(folder).expanduser() / processor()
    shared.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = shared.stat()
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        msg = f"{shared} can be written by others"
        raise PermissionError(msg)
    return shared


def _begin(shared: pathlib.Path) -> pathlib.Path:
    """Returns a folder of this process with all programs that are kept."""
    host = socket.gethostname()
    for left in shared.glob(f"of-*-{host}-*"):  # of processes that were killed
        if not _alive(int(left.name.split("-")[1])):
            _hand_over(left, shared)
    own = tempfile.mkdtemp(prefix=f"of-{os.getpid()}-{host}-", dir=shared)
    for path in shared.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            os.link(path, pathlib.Path(own) / path.name)
    return pathlib.Path(own)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _hand_over(own: pathlib.Path, shared: pathlib.Path) -> None:
    """Moves whole programs over, removes what is left, and what is too much."""
    with contextlib.suppress(OSError):
        for path in own.iterdir():
            new = path.name.endswith("-cache") and not (shared / path.name).exists()
            if new and _whole(path):
                path.replace(shared / path.name)
            else:
                path.unlink()
        own.rmdir()
        prune(shared)


def prune(folder: pathlib.Path) -> None:
    """Removes the programs in `folder` that were not used for longest, above `MOST`."""
    ages = {path: path.stat() for path in folder.glob("*-cache")}
    total = sum(about.st_size for about in ages.values())
    for path in sorted(ages, key=lambda path: ages[path].st_atime):
        if total > MOST:
            path.unlink()
            total -= ages[path].st_size


def _whole(path: pathlib.Path) -> bool:
    """Returns whether a file has all of a program, as jax compresses it."""
    content = path.read_bytes()
    if content.startswith(ZSTD):
        # Jax takes it where it is installed.
        import zstandard  # pyright: ignore[reportMissingImports]

        with contextlib.suppress(zstandard.ZstdError):
            return bool(zstandard.ZstdDecompressor().decompress(content))
        return False
    unpacked = zlib.decompressobj()
    with contextlib.suppress(zlib.error):
        unpacked.decompress(content)
    return unpacked.eof
