"""A round as a coordinator sees it: who was asked, what came of it, and its report."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fl_sketch.core.protocols import Mechanism
from fl_sketch.engine.cohort import LEAST, Cohort
from fl_sketch.engine.recorder import column_of
from fl_sketch.engine.round import Report, SimulatorOnly
from fl_sketch.network.known import Counts, Heard


class Asked(NamedTuple):
    """The clients of a round, on the host.

    Attributes:
      ids: the clients, int32 [places].
      weights: their weights, float32 [places]; 0: an unused place.
      denominator: divides the weighted sum of all.
      population: the weight of all clients that exist.
      fixed: whether the denominator is the same whoever answers.
      hidden: whether noise hides who answers: all counts are the denominator.
    """

    ids: np.ndarray
    weights: np.ndarray
    denominator: np.float32
    population: np.float32
    fixed: bool = False
    hidden: bool = False

    def among(self, clients: Collection[int]) -> Counts:
        """Returns how clients count if these of them answer.

        Sites are told, and the server's step may depend on it.
        """
        if self.hidden:
            return Counts(self.denominator, self.denominator, self.population)
        here = np.isin(self.ids, [*clients])
        present = np.float32(self.weights[here].sum())
        whole = np.float32(self.weights.sum())
        divided = self.denominator
        if whole == self.denominator and not self.fixed:
            divided = max(present, np.float32(LEAST))
        return Counts(divided, present, self.population)


def asked_of(cohort: Cohort, mechanism: Mechanism | None, fixed: bool) -> Asked:
    """Returns a cohort on the host as a round counts it, as `engine.round` does.

    Args:
      fixed: whether its denominator is the same whoever answers.
    """
    weights, population = np.asarray(cohort.weights), cohort.population
    divided = mechanism.denominator if mechanism else np.asarray(cohort.denominator)
    population = np.asarray(cohort.denominator if population is None else population)
    if mechanism:
        weights = (weights > 0).astype(weights.dtype)
    sizes = np.float32(divided), np.float32(population)
    hidden = mechanism is not None
    return Asked(np.asarray(cohort.ids), weights, *sizes, fixed=fixed, hidden=hidden)


class Spoken(NamedTuple):
    """A round after its exchanges.

    Attributes:
      asked: the clients that were asked.
      heard: the means so far.
      guard: the state of the mechanism.
      released: what the mechanism released.
      counted: the clients whose messages are all there.
      seen: what clients measured, by client.
      bytes_up, bytes_told: what a client sent, and received between exchanges.
    """

    asked: tuple[int, ...]
    heard: Heard
    guard: Any
    released: dict[str, Any]
    counted: tuple[int, ...]
    seen: dict[int, dict[str, float]]
    bytes_up: int = 0
    bytes_told: int = 0


class Silence:
    """Which sites do not answer: such a site is asked ever more seldom.

    After the second frame in a row without an answer it is left out of one round, after
    the third of three, and of `LONGEST` at most.

    >>> silence = Silence()
    >>> silence.without([0, 1], 5), silence.missed(1), silence.missed(1)
    ([0, 1], '', '; it is asked again in round 8, or when too few sites answer')
    >>> silence.without([0, 1], 6), silence.without([0, 1], 7)
    ([0], [0, 1])
    """

    LONGEST = 31

    def __init__(self):
        """Takes all sites to answer."""
        self._number = 0
        self._missed: dict[int, int] = {}
        self._until: dict[int, int] = {}

    def without(self, clients: Sequence[int], number: int) -> list[int]:
        """Returns the clients that are asked in a round, which begins."""
        self._number = number
        return [one for one in clients if self._until.get(one, 0) <= number]

    def missed(self, client: int) -> str:
        """Notes that a site did not answer; says when it is asked again, if later."""
        times = self._missed[client] = self._missed.get(client, 0) + 1
        rounds = min(2 ** (times - 1) - 1, self.LONGEST)
        self._until[client] = self._number + 1 + rounds
        at = self._until[client] + 1
        later = f"; it is asked again in round {at}, or when too few sites answer"
        return later if rounds else ""

    def ended(self, client: int) -> None:
        """Notes that a site answered."""
        self._missed.pop(client, None)
        self._until.pop(client, None)


def report_of(asked: Asked, spoken: Spoken, measures: Sequence[str]) -> Report:
    """Returns the report of a round, along an axis of one.

    What sites measure and do not tell has an empty column.
    """
    seen = _diagnostics(asked, spoken)
    untold = {
        column_of(name): np.float32(np.nan) for name in measures if name not in seen
    }
    here = asked.weights > 0
    shown: dict[str, Any] = {
        "clients": np.where(here, asked.ids, -1),
        "answered": here & np.isin(asked.ids, spoken.counted),
        "bytes_up": np.int64(spoken.bytes_up),
        "bytes_told": np.int64(spoken.bytes_told),
        "diagnostics": seen,
    }
    once = jax.tree.map(
        lambda leaf: np.asarray(leaf)[None], ({**spoken.released, **untold}, shown)
    )
    return Report(once[0], SimulatorOnly(**once[1]))


def told_in(notes: Mapping[str, Any], measures: Sequence[str]) -> dict[str, float]:
    """Returns what a site tells of its local work: finite numbers of these names."""
    told = notes.get("diagnostics")
    pairs = told.items() if isinstance(told, dict) else ()
    return {
        name: float(value)
        for name, value in pairs
        if name in measures and isinstance(value, int | float) and np.isfinite(value)
    }


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
