"""Which clients are available in a round, and which of them answer in time.

>>> import jax
>>> there = present(3, 2, first_and_last=[(0, 1, 2), (1, 2, 3), (2, 2, 2)], rounds=3)
>>> [sorted(there(jax.random.key(0), n).ids[:1].tolist()) for n in (0, 2)]
[[0], [1]]
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import validate
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.protocols import Key
from fl_sketch.engine.cohort import LEAST, Cohort, Sampler

MOST = 2**27  # entries of a trace: clients, in each round in which they are available


def present(
    population: int,
    size: int,
    *,
    first_and_last: Sequence[tuple[int, int, int]],
    rounds: int,
) -> Sampler:
    """Draws different clients of those that are available by a trace, which repeats.

    The mean is over those that are drawn, and zero in a round without any.

    Args:
      size: the number of clients of a round, or all where fewer are available.
      first_and_last: triples of a client, and the first and the last round in which it
        is available; rounds are counted from 1.
      rounds: the number of rounds after which the trace repeats.

    Raises:
      ValueError: in one line, for a client or a round that cannot be.
    """
    starts, clients = _by_round(population, first_and_last, rounds)
    longest = int(np.diff(starts).max())
    size = min(size, longest)
    starts, clients = jnp.asarray(starts), jnp.asarray(clients)

    def draw(key: Key, number) -> Cohort:
        here = jnp.asarray(number, jnp.int32) % rounds
        count = starts[here + 1] - starts[here]
        places = jnp.arange(longest)
        ids = jnp.where(places < count, clients[starts[here] + places], 0)
        scores = jax.random.uniform(key, (longest,))
        order = jax.lax.top_k(jnp.where(places < count, scores, -1), size)[1]
        weights = (order < count).astype(jnp.float32)
        return Cohort(ids[order], weights, jnp.maximum(weights.sum(), LEAST))

    return Sampler(draw, "", population, size, float(population), timed=True)


def _by_round(population: int, triples, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns where the clients of each round begin, and the clients of all rounds."""
    validate.at_least_one(population=population, rounds=rounds)
    table = np.asarray(triples, np.int64).reshape(-1, 3)
    for number, (client, first, last) in enumerate(table.tolist(), 1):
        if not (0 <= client < population and 1 <= first <= last <= rounds):
            msg = (
                f"Expected clients from 0 to {population - 1} and rounds 1 <= first <= "
                f"last <= {rounds}, got {client}, {first}, {last} in row {number}."
            )
            raise ValueError(msg)
    spans = table[:, 2] - table[:, 1] + 1
    total = int(spans.sum())
    validate.at_most(MOST, "the largest that fits", presences=total)
    if not total:
        msg = "Expected a trace with rows, got none."
        raise ValueError(msg)
    offsets = np.arange(total) - np.repeat(np.cumsum(spans) - spans, spans)
    when = np.repeat(table[:, 1] - 1, spans) + offsets
    pairs = np.unique(when * population + np.repeat(table[:, 0], spans))
    starts = np.searchsorted(pairs, np.arange(rounds + 1) * population)
    return starts.astype(np.int32), (pairs % population).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Clock:
    """How long clients take for a round, and when it closes.

    Attributes:
      seconds: the median time of each client, float32 [population].
      jitter: the deviation of the logarithm of a time from round to round.
      sending: the seconds that sending a message takes.
      deadline: the seconds after which a round closes; 0: it waits for all.
    """

    seconds: Any
    jitter: float = 0.0
    sending: float = 0.0
    deadline: float = 0.0

    def times(self, key: Key, ids: jax.Array) -> jax.Array:
        """Returns the seconds that clients take in the round with a key."""
        normal = jax.random.normal(apart(key, Purpose.TIMES), ids.shape)
        spread = jnp.exp(self.jitter * normal)
        return jnp.asarray(self.seconds, jnp.float32)[ids] * spread + self.sending


def in_time(sampler: Sampler, clock: Clock) -> Sampler:
    """Counts those clients of a cohort that answer before the deadline.

    The mean is over them, and zero if none does. The others have received the model
    too.
    """
    if not clock.deadline:
        return sampler

    def draw(key, number):
        cohort = sampler(key, number)
        early = clock.times(key, cohort.ids) <= clock.deadline
        return cohort.answering(cohort.weights * early)

    return dataclasses.replace(sampler, draw=draw, sampling="", timed=True, whole=False)


def lasting(sampler: Sampler, clock: Clock) -> Callable[[Key, Any], jax.Array]:
    """Returns `(key, number) -> seconds`, the time that a round takes.

    It is the time of the slowest client that received the model, or the deadline.
    """

    def seconds(key, number):
        cohort = sampler(key, number)
        times = jnp.where(cohort.asked, clock.times(key, cohort.ids), 0)
        slowest = jnp.max(times, initial=0)
        return jnp.minimum(slowest, clock.deadline) if clock.deadline else slowest

    return seconds
