"""A lower bound on epsilon from runs with and without a canary client.

The same run is repeated many times with fresh randomness, with and without one
client whose message is the worst the bound allows. Who sees only what is released
guesses by a score which of the two it was; how well it guesses bounds epsilon from
below, with confidence (Clopper-Pearson). A bound above the claim is a proof that
the claim is wrong; one below it proves nothing.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> absent, present = rng.normal(size=(2, 4000))
>>> lower_bound(absent, present, delta=0.1)  # nothing to see
0.0
>>> 2 < lower_bound(absent, present + 2, delta=0.1) < 3.81  # the truth
True
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from fl_sketch import engine, trees, validate
from fl_sketch.engine.cohort import Sampler
from fl_sketch.protocols import Algorithm, Key, Tree


def scores(
    algorithm: Algorithm,
    fetch: Callable,
    params: Tree,
    data: Any,
    sampler: Sampler,
    *,
    canary: int,
    present: bool,
    direction: jax.Array,
    population: int,
    rounds: int,
    trials: int,
    key: Key,
    mesh: jax.sharding.Mesh,
) -> np.ndarray:
    """Returns <x_T - x_0, direction> of independent runs, float32 [trials].

    Args:
      algorithm: with its mechanism.
      fetch: as for `engine.make_round`.
      params: x_0.
      data: what `fetch` reads; the canary's share is the attack.
      sampler: of the cohorts.
      canary: the client that may be away.
      present: whether it is not.
      direction: along which the attacker looks, float32 [d].
      population: of clients, the canary included.
      rounds: T.
      trials: how many runs.
      key: of all of them.
      mesh: devices along the axis "clients".
    """
    validate.at_least_one(rounds=rounds, trials=trials)
    one_round = engine.make_round(algorithm, fetch, mesh)
    people = sampler if present else without(sampler, canary)
    run = functools.partial(engine.run_rounds, one_round, people, most=rounds)

    def one(key):
        state = engine.initial_state(algorithm, params, population)
        state, _ = run(state, key, data, rounds)
        moved = jax.tree.map(jnp.subtract, state.server.params, params)
        return jnp.vdot(trees.ravel(moved), direction)

    keys = jax.random.split(jax.random.fold_in(key, int(present)), trials)
    return np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys))(keys))


def without(sampler: Sampler, client: int) -> Sampler:
    """Returns the sampler of the neighbour in which a client is not there."""

    def sample(key):
        cohort = sampler(key)
        weights = jnp.where(cohort.ids == client, 0, cohort.weights)
        return cohort._replace(weights=weights)

    return sample


def lower_bound(
    absent: np.ndarray, present: np.ndarray, *, delta: float, confidence: float = 0.95
) -> float:
    """Returns an epsilon below the true one, with this confidence.

    (epsilon, delta) privacy means P(A | one) <= e^epsilon P(A | other) + delta for
    every event A, both ways. The event, a score beyond a threshold, is chosen on the
    first half of the runs and counted on the second.

    Args:
      absent: scores of independent runs without the canary.
      present: and with it.
      delta: of the claim.
      confidence: that the bound holds.
    """
    validate.in_range(0, 1, delta=delta, confidence=confidence)
    first, second = zip(*(np.array_split(s, 2) for s in (absent, present)), strict=True)
    best = max(_events(first), key=lambda e: _bound(*first, *e, delta, confidence))
    return _bound(*second, *best, delta, confidence)


def _events(scores_: tuple[np.ndarray, np.ndarray]) -> list[tuple[float, int, bool]]:
    together = np.concatenate(scores_)
    thresholds = np.quantile(together, np.linspace(0.005, 0.995, 100))
    return [(t, s, w) for t in thresholds for s in (1, -1) for w in (False, True)]


def _bound(absent, present, threshold, sign, swapped, delta, confidence) -> float:
    likely, unlikely = (absent, present) if swapped else (present, absent)
    alpha = (1 - confidence) / 2  # both sides may fail
    hits = [int(np.sum(sign * s > sign * threshold)) for s in (likely, unlikely)]
    low = _clopper_pearson(hits[0], likely.size, alpha)[0] - delta
    high = _clopper_pearson(hits[1], unlikely.size, alpha)[1]
    return max(0.0, math.log(low / high)) if low > 0 else 0.0


def _clopper_pearson(hits: int, count: int, alpha: float) -> tuple[float, float]:
    """Returns one-sided bounds on a probability, each wrong with chance alpha."""
    low = stats.beta.ppf(alpha, hits, count - hits + 1) if hits else 0.0
    high = stats.beta.ppf(1 - alpha, hits + 1, count - hits) if hits < count else 1.0
    return float(low), float(high)
