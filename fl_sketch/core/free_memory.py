"""How much memory there still is, on the devices or on the host they share."""

import contextlib
import ctypes
import math
import pathlib
from collections.abc import Sequence

import jax

LIMITS = (  # files with the bytes a process may have, where the system says so
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
MEMINFO = "/proc/meminfo"


def of_host() -> float:
    """Returns how many bytes this host may still give, as far as it says.

    It is the least of the limits of `LIMITS` and the memory available by `MEMINFO`;
    infinite where the system says nothing.
    """
    found = [math.inf]
    for file in map(pathlib.Path, LIMITS):
        if file.exists() and file.read_text().strip().isdigit():
            found.append(float(file.read_text()))
    info = pathlib.Path(MEMINFO)
    if info.exists():
        lines = (line.split() for line in info.read_text().splitlines())
        found += [1024.0 * int(words[1]) for words in lines if "MemAvail" in words[0]]
    return min(found)


def give_back() -> None:
    """Returns to the system what C's allocator keeps of memory that nobody uses.

    A compiler leaves some hundred megabytes. Where the allocator is not glibc's there
    is nothing to do.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def of_devices(devices: Sequence[jax.Device]) -> float | None:
    """Returns the bytes that each of `devices` may still give: the least of them all.

    None where they have no memory of their own but use the host's.
    """
    stats = [device.memory_stats() for device in devices]
    if not all(stats):
        return None
    return float(min(each["bytes_limit"] - each["bytes_in_use"] for each in stats))


def free(devices: Sequence[jax.Device]) -> float:
    """Returns the bytes that each of `devices` may still give.

    Of memory of their own it is the least that one has left; of the host's, the part
    of each if all have the same.
    """
    own = of_devices(devices)
    return of_host() / len(devices) if own is None else own
