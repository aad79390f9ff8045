"""Timing several computations in turn, so that a drifting machine affects all alike."""

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Name = TypeVar("Name")


class Timed:
    """A computation that carries a value from call to call.

    Attributes:
      value: the value for the next call.
      first_seconds: the seconds of the first call.
    """

    value: Any
    first_seconds: float

    def __init__(self, start: Callable[[], Any], call: Callable[[Any], Any]):
        """Takes the parts of the computation; nothing is called yet.

        Args:
          start: `() -> value` for the first call.
          call: `(value) -> value`, which must return only when the work is done. If it
            overwrites its donated argument it returns the value for the next call;
            otherwise it may return anything.
        """
        self.start, self.call = start, call

    def warm_up(self) -> None:
        """Begins, and calls twice, so that everything is compiled."""
        self.value = self.start()
        self.first_seconds = self.seconds()
        self.seconds()

    def seconds(self) -> float:
        """Calls once more; returns the time that it took."""
        begin = time.perf_counter()
        self.value = self.call(self.value)
        return time.perf_counter() - begin


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
    calls, slowest = {}, 0.0
    for name, item in timed.items():
        item.warm_up()
        spent = item.seconds()
        calls[name] = max(1, int(sample_seconds / max(spent, 1e-7)))
        slowest = max(slowest, spent)
    rounds = max(3, int(min(rounds, budget_seconds / slowest)))
    samples, order = {name: [] for name in timed}, list(timed)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            taken = [timed[name].seconds() for _ in range(calls[name])]
            samples[name].append(statistics.median(taken))
    return samples


def ratio(ours: list[float], unit: list[float]) -> float:
    """Returns the median ratio of `ours` to `unit`, each pair measured in one round."""
    return statistics.median(a / b for a, b in zip(ours, unit, strict=True))
