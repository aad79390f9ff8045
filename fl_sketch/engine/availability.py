"""Who is there in which round, and who answers in time.

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
from fl_sketch.engine.cohort import Cohort, Sampler

MOST = 2**27  # entries of a trace: clients, in each round in which they are there
LEAST = 1e-9  # of a sum of weights, where nobody has any


def present(
    population: int,
    size: int,
    *,
    first_and_last: Sequence[tuple[int, int, int]],
    rounds: int,
) -> Sampler:
    """`size` different clients of those that are there, or all where there are fewer.

    The trace repeats. The mean is over those who come; in a round of nobody it is zero.

    Args:
      population: the number of clients.
      size: the number of clients of a round; the population for everyone who is there.
      first_and_last: triples of a client, and the first and the last round in which it
        is there; rounds are counted from 1.
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
        own = jnp.where(places < count, clients[starts[here] + places], 0)
        scores = jax.random.uniform(key, (longest,))
        order = jax.lax.top_k(jnp.where(places < count, scores, -1), size)[1]
        weights = (order < count).astype(jnp.float32)
        return Cohort(own[order], weights, jnp.maximum(weights.sum(), LEAST))

    return Sampler(draw, "", population, size, float(population), timed=True)


def _by_round(population: int, triples, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the clients of every round, one after the other, and where they begin."""
    validate.at_least_one(population=population, rounds=rounds)
    table = np.asarray(triples, np.int64).reshape(-1, 3)
    for number, (client, first, last) in enumerate(table.tolist(), 1):
        if not (0 <= client < population and 1 <= first <= last <= rounds):
            msg = (
                f"Expected clients from 0 to {population - 1} and rounds from 1 to "
                f"{rounds}, the first one first, got {client}, {first}, {last} in row "
                f"{number}."
            )
            raise ValueError(msg)
    spans = table[:, 2] - table[:, 1] + 1
    total = int(spans.sum())
    validate.at_most(MOST, "there is no room for more", presences=total)
    if not total:
        msg = "Expected somebody to be there, got a trace without rows."
        raise ValueError(msg)
    offsets = np.arange(total) - np.repeat(np.cumsum(spans) - spans, spans)
    when = np.repeat(table[:, 1] - 1, spans) + offsets
    pairs = np.unique(when * population + np.repeat(table[:, 0], spans))
    starts = np.searchsorted(pairs, np.arange(rounds + 1) * population)
    return starts.astype(np.int32), (pairs % population).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Clock:
    """How long clients take, and when a round closes.

    Attributes:
      seconds: the median time of each client for a round, float32 [population].
      jitter: the deviation of the logarithm of a time from round to round.
      sending: the seconds that sending a message takes.
      deadline: the seconds after which a round closes; 0: it waits for all.
    """

    seconds: Any
    jitter: float = 0.0
    sending: float = 0.0
    deadline: float = 0.0

    def times(self, key: Key, ids: jax.Array) -> jax.Array:
        """Returns the seconds that clients `ids` take in the round with a `key`."""
        own = apart(key, Purpose.TIMES)
        spread = jnp.exp(self.jitter * jax.random.normal(own, ids.shape))
        return jnp.asarray(self.seconds, jnp.float32)[ids] * spread + self.sending


def in_time(sampler: Sampler, clock: Clock) -> Sampler:
    """Of the clients that `sampler` drew those count who answer before the deadline.

    The mean is over them; if nobody answers it is zero. The others have received the
    model all the same.

    Args:
      sampler: the sampler of the cohorts.
      clock: the times of clients, and the deadline.
    """
    if not clock.deadline:
        return sampler

    def draw(key, number):
        cohort = sampler(key, number)
        weights = cohort.weights * (clock.times(key, cohort.ids) <= clock.deadline)
        total = jnp.maximum(jnp.sum(weights), LEAST)
        return Cohort(cohort.ids, weights, total, cohort.asked)

    return dataclasses.replace(sampler, draw=draw, sampling="", timed=True)


def lasting(sampler: Sampler, clock: Clock) -> Callable[[Key, Any], jax.Array]:
    """Returns `(key, number) -> seconds`, the time that a round takes.

    It is that of the slowest of those who were asked, or the deadline.

    Args:
      sampler: the sampler of the cohorts.
      clock: the times of clients, and the deadline.
    """

    def seconds(key, number):
        cohort = sampler(key, number)
        times = jnp.where(cohort.asked, clock.times(key, cohort.ids), 0)
        slowest = jnp.max(times, initial=0)
        return jnp.minimum(slowest, clock.deadline) if clock.deadline else slowest

    return seconds
