"""A round as a coordinator sees it: who was asked, what came of it, and its report."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fl_sketch.engine.cohort import LEAST
from fl_sketch.engine.round import Report, SimulatorOnly
from fl_sketch.network.conversation import Counts, Heard


class Asked(NamedTuple):
    """The clients of a round, on the host.

    Attributes:
      ids: the clients, int32 [places].
      weights: their weights, float32 [places]; 0: an unused place.
      denominator: divides the weighted sum of all.
      population: the weight of all clients that exist.
    """

    ids: np.ndarray
    weights: np.ndarray
    denominator: np.float32
    population: np.float32

    def among(self, clients: Collection[int]) -> Counts:
        """Returns how clients count if these of them answer."""
        here = np.isin(self.ids, [*clients])
        present = np.float32(self.weights[here].sum())
        whole = np.float32(self.weights.sum())
        divided = self.denominator
        if whole == self.denominator:  # it is not fixed
            divided = max(present, np.float32(LEAST))
        return Counts(divided, present, self.population)


class Spoken(NamedTuple):
    """A round after its exchanges.

    Attributes:
      heard: the means so far.
      guard: the state of the mechanism.
      released: what the mechanism released.
      counted: the clients whose messages are all there.
      bytes_up, bytes_told: what a client sent, and received between exchanges.
      seen: what clients measured, by client.
    """

    heard: Heard
    guard: Any
    released: dict[str, Any]
    counted: tuple[int, ...]
    bytes_up: int
    bytes_told: int
    seen: dict[int, dict[str, float]]


def report_of(asked: Asked, spoken: Spoken) -> Report:
    """Returns the report of a round, along an axis of one."""
    here = asked.weights > 0
    shown: dict[str, Any] = {
        "clients": np.where(here, asked.ids, -1),
        "answered": here & np.isin(asked.ids, spoken.counted),
        "bytes_up": np.int64(spoken.bytes_up),
        "bytes_told": np.int64(spoken.bytes_told),
        "diagnostics": _diagnostics(asked, spoken),
    }
    once = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (spoken.released, shown))
    return Report(once[0], SimulatorOnly(**once[1]))


def _diagnostics(asked: Asked, spoken: Spoken) -> dict[str, np.float32]:
    """Returns means of what clients measured, if all of the round tell it."""
    told = [spoken.seen.get(one, {}) for one in spoken.counted]
    names = set.intersection(*(set(one) for one in told)) if told else set()
    weights = dict(zip(asked.ids.tolist(), asked.weights, strict=True))
    each = np.array([weights[one] for one in spoken.counted], np.float32)
    return {
        name: np.float32(np.average([one[name] for one in told], weights=each))
        for name in sorted(names)
    }


def added(totals: dict, terms: Mapping[str, Any]) -> dict:
    """Returns both, with sums where they have the same name."""
    names = {**totals, **terms}
    return {n: sum(part[n] for part in (totals, terms) if n in part) for n in names}
