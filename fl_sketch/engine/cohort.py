"""The clients of a round: a sampler draws a cohort by the key of the round.

Cohorts of one sampler have one length, so that all rounds share a program; unused
places have weight zero. Sampling costs the cohort's size, not the population's.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import validate
from fl_sketch.core.hashing import sample_without_replacement
from fl_sketch.core.keys import cohort_key
from fl_sketch.core.protocols import Key, Roots
from fl_sketch.privacy.accounting import places_for

LEAST = 1e-9  # of a sum of weights, so that a round without weight has a mean of zero


class Cohort(NamedTuple):
    """The clients of one round.

    Attributes:
      ids: the number of each client, int32 [places].
      weights: their weights in the mean, float32 [places]; zero: not taking part.
      denominator: divides the weighted sum, float32 [].
      invited: the places that received the model, bool [places]; None: those with
        weight.
      population: the weight of all clients that exist; None: the denominator.
    """

    ids: jax.Array
    weights: jax.Array
    denominator: jax.Array
    invited: jax.Array | None = None
    population: jax.typing.ArrayLike | None = None

    @property
    def asked(self) -> jax.Array:
        """The places whose clients received the model, whether they answer or not."""
        return self.weights > 0 if self.invited is None else self.invited

    def answering(self, weights: jax.Array) -> "Cohort":
        """Returns the cohort with other weights; the mean is over their sum."""
        total = jnp.maximum(jnp.sum(weights), LEAST)
        return Cohort(self.ids, weights, total, self.asked)


@dataclasses.dataclass(frozen=True)
class Sampler:
    """A way to draw cohorts, and what an accountant must know of it.

    Attributes:
      draw: `(key) -> Cohort`.
      sampling: its name in `privacy.accounting`; empty: no accountant knows it.
      size: the expected number of clients in a round.
      weight: the sum of all clients' weights; None: unknown.
      whole: whether all clients answer in every round.
      repeats: whether a client may be drawn twice for a round.
      dropout: whether a client that is drawn may not answer.
    """

    draw: Callable[[Key], Cohort]
    sampling: str
    population: int
    size: float
    weight: jax.typing.ArrayLike | None = None
    whole: bool = False
    repeats: bool = False
    dropout: bool = False

    @property
    def places(self) -> int:
        """The number of places of a cohort, the same in every round."""
        return jax.eval_shape(lambda: self(jax.random.key(0))).ids.size

    def __call__(self, key: Key) -> Cohort:
        """Returns the cohort of a round, of its key."""
        weight = None if self.weight is None else jnp.float32(self.weight)
        return self.draw(key)._replace(population=weight)


def of_round(
    sampler: Callable[..., Cohort], key: Key | Roots, number: jax.typing.ArrayLike
) -> Cohort:
    """Returns the cohort of a round, numbered from zero.

    Args:
      sampler: a sampler, or a function of the round's key.
    """
    return sampler(cohort_key(key, number))


def _alike(draw, sampling: str, population: int, size: float, **facts) -> Sampler:
    """Returns a sampler of clients with equal weights."""
    return Sampler(draw, sampling, population, size, float(population), **facts)


def everyone(population: int) -> Sampler:
    """Draws all clients in every round."""
    validate.at_least_one(population=population)
    ids = jnp.arange(population, dtype=jnp.int32)

    def draw(key):
        del key
        return _equal_weights(ids)

    return _alike(draw, "everyone", population, population, whole=True)


def fixed_size(population: int, size: int) -> Sampler:
    """Draws `size` different clients, all sets equally likely."""
    validate.at_least_one(population=population, size=size)
    validate.at_most(population, "the population", size=size)

    def draw(key):
        return _equal_weights(sample_without_replacement(key, size, population))

    return _alike(draw, "fixed", population, size)


def with_replacement(population: int, size: int) -> Sampler:
    """Draws `size` clients independently; a client that is drawn twice counts twice.

    It is not for algorithms with client state: of two copies only one would be kept.
    """
    validate.at_least_one(population=population, size=size)

    def draw(key):
        return _equal_weights(
            jax.random.randint(key, (size,), 0, population, jnp.int32)
        )

    return _alike(draw, "", population, size, repeats=True)


def poisson(population: int, expected: float) -> Sampler:
    """Draws every client independently, with probability expected / population.

    The denominator is always `expected`, as privacy accounting assumes. A cohort may be
    empty. There are places for all but one cohort in 10^14, which is cut to the places.
    """
    validate.at_least_one(population=population)
    if not 0 < expected <= population:
        msg = (
            f"Expected 0 < expected <= {population} (the population), "
            f"got expected={expected}."
        )
        raise ValueError(msg)
    places = places_for(population, expected)
    table = _cumulative(population, expected / population, places)

    def draw(key):
        key_count, key_ids = jax.random.split(key)
        count = _drawn(key_count, table)
        ids = sample_without_replacement(key_ids, places, population)
        weights = (jnp.arange(places) < count).astype(jnp.float32)
        return Cohort(ids, weights, jnp.float32(expected))

    return _alike(draw, "poisson", population, expected)


def _cumulative(population: int, rate: float, places: int) -> np.ndarray:
    """Returns P(count <= k) for k below the places, in units of 2^-64: uint32 [2, k].

    jax.random.binomial works in float32, which is no distribution to account for.
    """
    from scipy import stats

    chances = stats.binom.cdf(np.arange(places), population, rate)
    units = [min(int(chance * 2.0**64), 2**64 - 1) for chance in chances]
    return np.array([[n >> 32 for n in units], [n & 0xFFFFFFFF for n in units]], "u4")


def _drawn(key: Key, table: np.ndarray) -> jax.Array:
    """Returns how many entries of the table a uniform number of 64 bits reaches."""
    high, low = jax.random.bits(key, (2,), jnp.uint32)
    below = (table[0] < high) | ((table[0] == high) & (table[1] <= low))
    return jnp.sum(below, dtype=jnp.int32)


def with_dropout(sampler: Sampler, dropout: float) -> Sampler:
    """Lets each client of a cohort fail to answer with probability `dropout`.

    The mean is over those that answer, and zero if none does. The others have received
    the model too.
    """
    validate.below_one(dropout=dropout)

    def draw(key):
        key_cohort, key_drop = jax.random.split(key)
        cohort = sampler(key_cohort)
        stays = jax.random.bernoulli(key_drop, 1 - dropout, cohort.weights.shape)
        return cohort.answering(cohort.weights * stays)

    return dataclasses.replace(sampler, draw=draw, whole=False, dropout=True)


def weighted(
    sampler: Sampler,
    weight_of: Callable[[jax.Array], jax.Array],
    *,
    average: jax.typing.ArrayLike | None = None,
) -> Sampler:
    """Gives each client its own weight in the mean.

    Args:
      weight_of: `(ids) -> float32 [places]`, for instance how many examples each has.
        It gets the ids of a cohort, so that no round costs a pass over the population.
      average: the mean weight over the population. The denominator is then that of the
        sampler times this, the same in every round; None: it is the sum of the weights
        of those that answer.
    """

    def draw(key):
        cohort = sampler(key)
        weights = cohort.weights * weight_of(cohort.ids)
        if average is None:
            return cohort.answering(weights)
        total = cohort.denominator * average
        return Cohort(cohort.ids, weights, total, cohort.asked)

    weight = None if average is None else sampler.population * average
    return dataclasses.replace(sampler, draw=draw, sampling="", weight=weight)


def _equal_weights(ids: jax.Array) -> Cohort:
    return Cohort(ids, jnp.ones(ids.shape), jnp.float32(ids.size))


def padded(cohort: Cohort, multiple: int) -> Cohort:
    """Returns the cohort with more places, of weight zero, up to a multiple."""
    extra = -cohort.ids.size % multiple
    if not extra:
        return cohort
    return cohort._replace(
        ids=jnp.pad(cohort.ids, (0, extra), mode="edge"),
        weights=jnp.pad(cohort.weights, (0, extra)),
        invited=jnp.pad(cohort.asked, (0, extra)),
    )
