"""Timing several computations in turn, so that a drifting machine affects all alike."""

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

Name = TypeVar("Name")


class Timed(NamedTuple):
    """A computation that carries a value from call to call.

    If it overwrites its donated argument it returns the value for the next call;
    otherwise it may return anything.

    Attributes:
      start: `() -> value` for the first call.
      call: `(value) -> value`, which must return only when the work is done.
    """

    start: Callable[[], Any]
    call: Callable[[Any], Any]


def interleaved(
    timed: Mapping[Name, Timed],
    *,
    rounds: int = 15,
    sample_seconds: float = 0.01,
    budget_seconds: float = 3.0,
) -> dict[Name, list[float]]:
    """Returns the seconds a call of every round, by name.

    Every round takes one sample of each computation, in random order. A sample is a
    run of calls of about `sample_seconds`, and counts with its median call.

    Args:
      rounds: at least three; fewer if they exceed the budget.
      budget_seconds: the seconds that the slowest computation's calls may take.
    """
    values, calls, spent = {}, {}, {}
    for name, item in timed.items():
        values[name] = item.call(item.call(item.start()))  # compiled and warm
        spent[name] = _seconds(item, values, name)
        calls[name] = max(1, int(sample_seconds / max(spent[name], 1e-7)))
    slowest = max(spent.values())
    rounds = max(3, int(min(rounds, budget_seconds / slowest)))
    samples = {name: [] for name in timed}
    order = list(timed)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            runs = [_seconds(timed[name], values, name) for _ in range(calls[name])]
            samples[name].append(statistics.median(runs))
    return samples


def since_start() -> float | None:
    """Returns the seconds since this process began; None if /proc does not have it."""
    try:
        with open("/proc/self/stat") as process, open("/proc/uptime") as system:
            began = int(process.read().rpartition(")")[2].split()[19])
            now = float(system.read().split()[0])
    except OSError:
        return None
    return round(now - began / os.sysconf("SC_CLK_TCK"), 2)


def ratio(ours: list[float], unit: list[float]) -> float:
    """Returns the median ratio of `ours` to `unit`, each pair measured in one round."""
    return statistics.median(a / b for a, b in zip(ours, unit, strict=True))


def _seconds(item: Timed, values: dict[Name, Any], name: Name) -> float:
    begin = time.perf_counter()
    values[name] = item.call(values[name])
    return time.perf_counter() - begin
