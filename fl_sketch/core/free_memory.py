"""Free memory of the devices, or of the host if they share its memory."""

import contextlib
import ctypes
import gc
import math
import pathlib
from collections.abc import Sequence

import jax

LIMITS = (  # a container's folder, and files with the bytes it may have and has now
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
MEMINFO = "/proc/meminfo"
LARGE = 2**27  # bytes of arrays that are worth a collection


def of_host() -> float:
    """Returns the free bytes of this host: the least that `LIMITS` and `MEMINFO` leave.

    It is infinite if the system has neither.
    """
    sizes = [math.inf]
    for folder, *names in LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            most, now = (int(pathlib.Path(folder, n).read_text()) for n in names)
            lines = pathlib.Path(folder, "memory.stat").read_text().splitlines()
            stat = dict(line.split() for line in lines)
            cached = stat.get("total_inactive_file") or stat.get("inactive_file", 0)
            sizes.append(float(max(most - now + int(cached), 0)))  # cached is free
    info = pathlib.Path(MEMINFO)
    if info.exists():
        lines = (line.split() for line in info.read_text().splitlines())
        sizes += [1024.0 * int(words[1]) for words in lines if "MemAvail" in words[0]]
    return min(sizes)


def give_back() -> None:
    """Returns unused memory of glibc's allocator to the system.

    A compiler leaves some hundred megabytes. Other allocators do nothing here.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def let_go() -> None:
    """Frees arrays of earlier runs of this process, whose parts refer to each other.

    A collection visits every object, which takes a second in a process that has traced
    many programs: nothing is done for less than `LARGE` bytes of arrays.
    """
    if sum(array.nbytes for array in jax.live_arrays()) >= LARGE:
        gc.collect()


def of_devices(devices: Sequence[jax.Device]) -> float | None:
    """Returns the free bytes of the fullest device; None if they use the host's."""
    stats = [device.memory_stats() for device in devices]
    if not all(stats):
        return None
    return float(min(each["bytes_limit"] - each["bytes_in_use"] for each in stats))


def free(devices: Sequence[jax.Device]) -> float:
    """Returns the free bytes of each device: its own, or an equal share of the host's.

    If devices differ, it is that of the fullest.
    """
    size = of_devices(devices)
    return of_host() / len(devices) if size is None else size
