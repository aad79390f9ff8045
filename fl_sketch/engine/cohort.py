"""Who takes part in a round. Sampling costs the cohort's size, not the population's.

A sampler is a function of the round's key; cohorts of one sampler have one length,
so that rounds share a program. Unused places carry weight zero.
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
from fl_sketch.privacy.tails import cut_chance as cut_chance
from fl_sketch.privacy.tails import places_for


class Cohort(NamedTuple):
    """The clients of one round.

    Attributes:
      ids: the clients, int32 [places].
      weights: the weights of these, float32 [places]; zero: not taking part.
      denominator: the number by which the weighted sum is divided, float32 [].
      invited: the places that received the model, bool [places]; None: those with
        weight.
      rows: the rows in the bank of states, int32 [places]; None: the ids.
      population: the weight of all clients there are; None: the denominator's.
    """

    ids: jax.Array
    weights: jax.Array
    denominator: jax.Array
    invited: jax.Array | None = None
    rows: jax.Array | None = None
    population: jax.typing.ArrayLike | None = None

    @property
    def asked(self) -> jax.Array:
        """Which places hold a client that received the model, answering or not."""
        return self.weights > 0 if self.invited is None else self.invited


@dataclasses.dataclass(frozen=True)
class Sampler:
    """A way to draw cohorts, and what an accountant must know of it.

    Attributes:
      draw: `(key) -> Cohort`; if it is timed, `(key, number of the round) -> Cohort`.
      sampling: the name in `privacy.accounting`; empty: no accountant knows it.
      population: the number of clients.
      size: the number of them that is expected in a round.
      weight: the weight of all clients together, which is their number where all count
        alike; None: nobody knows it.
      timed: whether it matters which round it is.
    """

    draw: Callable[..., Cohort]
    sampling: str
    population: int
    size: float
    weight: jax.typing.ArrayLike | None = None
    timed: bool = False

    @property
    def places(self) -> int:
        """The number of places of a cohort, the same in every round."""
        return jax.eval_shape(lambda: self(jax.random.key(0))).ids.size

    def __call__(self, key: Key, number: jax.typing.ArrayLike = 0) -> Cohort:
        """Returns the cohort of the round of this `number`, whose `key` this is."""
        known = None if self.weight is None else jnp.float32(self.weight)
        drawn = self.draw(key, number) if self.timed else self.draw(key)
        return drawn._replace(population=known)


def of_round(
    sampler: Callable[..., Cohort], key: Key | Roots, number: jax.typing.ArrayLike
) -> Cohort:
    """Returns the cohort of a round.

    Args:
      sampler: the sampler, or a function of the round's key.
      key: the key of the whole run, or its roots.
      number: the number of the round, from zero.
    """
    own = cohort_key(key, number)
    return sampler(own, number) if isinstance(sampler, Sampler) else sampler(own)


def _alike(draw, sampling: str, population: int, size: float) -> Sampler:
    """Returns a sampler of clients that all count alike."""
    return Sampler(draw, sampling, population, size, float(population))


def everyone(population: int) -> Sampler:
    """All clients in every round, `population` of them."""
    validate.at_least_one(population=population)
    ids = jnp.arange(population, dtype=jnp.int32)
    return _alike(lambda key: _equal_weights(ids), "everyone", population, population)


def fixed_size(population: int, size: int) -> Sampler:
    """`size` different clients of the `population`, all sets equally likely."""
    validate.at_least_one(population=population, size=size)
    validate.at_most(population, "the population", size=size)

    def draw(key):
        return _equal_weights(sample_without_replacement(key, size, population))

    return _alike(draw, "fixed", population, size)


def with_replacement(population: int, size: int) -> Sampler:
    """`size` independent draws of the `population`; one drawn twice takes part twice.

    Not for algorithms whose clients keep a state: of two copies only one is kept.
    """
    validate.at_least_one(population=population, size=size)

    def draw(key):
        return _equal_weights(
            jax.random.randint(key, (size,), 0, population, jnp.int32)
        )

    return _alike(draw, "", population, size)


def poisson(population: int, expected: float) -> Sampler:
    """Every client of the `population` by itself, with chance expected / population.

    The denominator is fixed at `expected`, whoever comes: that is what privacy
    accounting assumes. A round of no clients is a round like any other. There are
    places for all but one cohort in 10^14, and that one is cut to the places.
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
    """Returns how many of the chances lie at or below a uniform number of 64 bits."""
    high, low = jax.random.bits(key, (2,), jnp.uint32)
    below = (table[0] < high) | ((table[0] == high) & (table[1] <= low))
    return jnp.sum(below, dtype=jnp.int32)


def with_dropout(sampler: Sampler, dropout: float) -> Sampler:
    """Each client that `sampler` drew fails to answer with probability `dropout`.

    The mean is over those who answer; if none does it is zero. The others have
    received the model all the same.
    """
    if not 0 <= dropout < 1:
        msg = f"Expected 0 <= dropout < 1, got dropout={dropout}."
        raise ValueError(msg)

    def draw(key, number):
        key_cohort, key_drop = jax.random.split(key)
        cohort = sampler(key_cohort, number)
        stays = jax.random.bernoulli(key_drop, 1 - dropout, cohort.weights.shape)
        weights = cohort.weights * stays
        total = jnp.maximum(jnp.sum(weights), 1e-9)
        return Cohort(cohort.ids, weights, total, cohort.asked)

    return dataclasses.replace(sampler, draw=draw, timed=True)


def weighted(
    sampler: Sampler,
    weight_of: Callable[[jax.Array], jax.Array],
    *,
    average: jax.typing.ArrayLike | None = None,
) -> Sampler:
    """Each client counts in the mean with its own weight.

    Args:
      sampler: the sampler of the cohorts.
      weight_of: `(ids) -> float32 [places]`: how many examples each has, say. It is
        asked about a cohort only, so that a round costs no pass over a population.
      average: the mean over the population, for a denominator that is the sampler's own
        times this, the same in every round; None: the sum of the weights of those
        who answer.
    """

    def draw(key, number):
        cohort = sampler(key, number)
        own = cohort.weights * weight_of(cohort.ids)
        if average is None:
            total = jnp.maximum(jnp.sum(own), 1e-9)
        else:
            total = cohort.denominator * average
        return Cohort(cohort.ids, own, total, cohort.asked)

    weight = None if average is None else sampler.population * average
    return dataclasses.replace(
        sampler, draw=draw, sampling="", weight=weight, timed=True
    )


def _equal_weights(ids: jax.Array) -> Cohort:
    return Cohort(ids, jnp.ones(ids.shape), jnp.float32(ids.size))


def padded(cohort: Cohort, multiple: int) -> Cohort:
    """Returns `cohort` with places of weight zero, up to a `multiple` of a number."""
    extra = -cohort.ids.size % multiple
    if not extra:
        return cohort
    rows = cohort.rows
    return cohort._replace(
        ids=jnp.pad(cohort.ids, (0, extra), mode="edge"),
        rows=None if rows is None else jnp.pad(rows, (0, extra), mode="edge"),
        weights=jnp.pad(cohort.weights, (0, extra)),
        invited=jnp.pad(cohort.asked, (0, extra)),
    )
