"""The distinguishing game: a lower bound on epsilon from many runs of two worlds.

The same few rounds are played many times with fresh randomness, in a world without a
canary and in one with it. An attacker who sees all that is released learns from a
part of the runs how the worlds differ, and guesses in the others by a score. How well
it guesses bounds epsilon from below, with confidence (Clopper-Pearson). A bound above
the claim is a proof that the claim is wrong; one below it proves nothing.

The score is one of two, whichever does better on runs that are not counted. One is
linear and weighs all that was released by the inverse of its covariance: noise that
several releases share has a combination without noise, and that is found. The other is
the likelihood ratio of Gaussian releases in which the canary takes part by chance.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> absent, present = rng.normal(size=(2, 4000))
>>> lower_bound(absent, present, delta=0.1)  # nothing to see
0.0
>>> 2 < lower_bound(absent, present + 2, delta=0.1) < 3.81  # the truth
True
"""

import math
from collections.abc import Callable
from concurrent import futures
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine
from fl_sketch.core import validate
from fl_sketch.core.protocols import Key, Roots

# `(key, present) -> float32 [rounds, numbers]`: all that a run released. Whether the
# canary is there, 0.0 or 1.0, is traced, so that one program plays both worlds.
Observe = Callable[[Key | Roots, jax.Array], jax.Array]

BLOCK = 4096  # runs at a time: what they hold stays in a core's cache
RIDGE = 1e-6  # of the attacker's covariances, over their diagonals
CHOICE = 0.999  # confidence by which events are compared: fewer are chosen by luck
RANKS = 60  # thresholds that are tried at each end of each world's scores


class Found(NamedTuple):
    """What an audit proves.

    Attributes:
      epsilon: a bound below the true one, with this confidence.
      confidence: the confidence in it.
      trials: runs of each world, or canaries, that it took.
      most: what so many could have shown at best.
    """

    epsilon: float
    confidence: float
    trials: int
    most: float


class Event(NamedTuple):
    """What is likely in one world and not in the other: sign score > threshold.

    Attributes:
      score: the number of the score that is compared, from zero.
      sign: the sign of the score, 1 or -1.
      threshold: the threshold, after the sign.
      swapped: whether it is the world without the canary in which it is likely.
    """

    score: int
    sign: int
    threshold: float
    swapped: bool


def play(
    observe: Observe,
    *,
    delta: float,
    trials: int,
    key: Key | Roots,
    rate: float = 1.0,
    mirrored: bool = False,
    confidence: float = 0.95,
) -> Found:
    """Returns how far two worlds can be told apart.

    An eighth of the runs teach the attacker how the worlds differ, three eighths which
    event does best, and the rest are counted.

    Args:
      observe: what the attacker sees of a run.
      delta: the delta of the claim.
      trials: runs of each world, made up to whole blocks.
      key: the key of all runs; each gets its own.
      rate: the chance that the canary takes part in a round.
      mirrored: whether without the canary there is its mirror image, by the same
        chance, and not the same of everybody in every round.
      confidence: the confidence in the bound.

    Raises:
      ValueError: for chances that are none, or no trial.
      ArithmeticError: for releases that are not finite.
    """
    validate.at_least_one(trials=trials)
    validate.in_range(0, 1, delta=delta, rate=rate, confidence=confidence)
    blocks = max(1, math.ceil(trials / (8 * BLOCK)))
    run = _program(observe, key)

    def worlds(first, count, of=lambda seen: seen):
        """Returns what is made of the runs of so many eighths, in each world."""
        numbers = range(first * blocks, (first + count) * blocks)
        asked = [(number, there) for number in numbers for there in (0.0, 1.0)]
        with futures.ThreadPoolExecutor(engine.cores()) as pool:
            made = list(pool.map(lambda one: of(run(*one)), asked))
        return [np.concatenate(made[there::2]) for there in (0, 1)]

    scores_of = _attacker(*worlds(0, 1), rate=rate, mirrored=mirrored)
    pilot, counted = worlds(1, 3, scores_of), worlds(4, 4, scores_of)
    event = max(
        (_best([s[:, n] for s in pilot], delta, n) for n in range(2)),
        key=lambda found: found[0],
    )[1]
    size = len(counted[0])
    return Found(
        _bound([s[:, event.score] for s in counted], event, delta, confidence),
        confidence,
        8 * blocks * BLOCK,
        _log_ratio((size, 0), (size, size), delta, confidence).item(),
    )


def lower_bound(
    absent: np.ndarray, present: np.ndarray, *, delta: float, confidence: float = 0.95
) -> float:
    """Returns an epsilon below the true one, with this confidence.

    (epsilon, delta) privacy means P(A | one) <= e^epsilon P(A | other) + delta for
    every event A, both ways. The event, a score beyond a threshold, is chosen on the
    first half of the runs and counted on the second.

    Args:
      absent: scores of independent runs without the canary.
      present: scores of runs with it.
      delta: the delta of the claim.
      confidence: the chance that the bound holds.
    """
    validate.in_range(0, 1, delta=delta, confidence=confidence)
    first, second = zip(*(np.array_split(s, 2) for s in (absent, present)), strict=True)
    event = _best(first, delta, 0)[1]
    return _bound(second, event, delta, confidence)


def beyond_the_end(
    draw: Callable[[Key, jax.Array], jax.Array],
    *,
    delta: float,
    draws: int,
    key: Key,
    confidence: float = 0.95,
) -> Found:
    """Returns what outputs say that noise alone never makes: where its tail ends.

    The event is an output above the largest of a third of the runs without a canary;
    the other runs are counted and not kept. With the canary there are as many as fit a
    tenth of these, since there the event is not rare.

    Args:
      draw: `(key, present) -> float32 [runs]`, a number that each of them releases.
      delta: the delta of the claim.
      draws: the number of runs without the canary, in all.
      key: the key of all runs.
      confidence: the confidence in the bound.
    """
    validate.in_range(0, 1, delta=delta, confidence=confidence)
    own = jax.random.fold_in(key, 0)
    size = jax.eval_shape(draw, own, jnp.float32(0)).size
    blocks = max(3, math.ceil(draws / size))
    pilot, few = blocks // 3, max(1, blocks // 10)

    @jax.jit
    def largest(keys):
        tops = jax.lax.map(lambda own: jnp.max(draw(own, jnp.float32(0))), keys)
        return jnp.max(tops)

    @jax.jit
    def above(keys, present, threshold):
        return jax.lax.map(lambda own: jnp.sum(draw(own, present) > threshold), keys)

    def keys(first, count):
        numbers = jnp.arange(first, first + count)
        return jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)

    end = largest(keys(0, pilot))
    rare = np.asarray(above(keys(pilot, blocks - pilot), jnp.float32(0), end))
    seen = np.asarray(above(keys(blocks, few), jnp.float32(1), end))
    sizes = (few * size, (blocks - pilot) * size)
    found = _log_ratio((seen.sum(), rare.sum()), sizes, delta, confidence)
    most = _log_ratio((sizes[0], 0), sizes, delta, confidence)
    return Found(found.item(), confidence, blocks * size, most.item())


def clopper_pearson(hits, count, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns one-sided bounds on a probability, each wrong with chance alpha.

    Args:
      hits: the number of times that it happened.
      count: the number of trials.
      alpha: the chance of each bound to be wrong.
    """
    from scipy import stats  # takes half a second to import

    hits, count = np.asarray(hits, float), np.asarray(count, float)
    low = stats.beta.ppf(alpha, np.maximum(hits, 0.5), count - hits + 1)
    high = stats.beta.ppf(1 - alpha, hits + 1, np.maximum(count - hits, 0.5))
    return np.where(hits > 0, low, 0.0), np.where(hits < count, high, 1.0)


def _program(observe: Observe, key: Key | Roots) -> Callable[..., np.ndarray]:
    """Returns `(block, present) -> float32 [BLOCK, rounds, numbers]`."""

    @jax.jit
    def run(key, number, present):
        own = jax.tree.map(lambda k: _keys_of_block(k, number, present), key)
        return jax.vmap(lambda k: observe(k, present))(own)

    # Threads that call it would each compile it.
    compiled = run.lower(key, jnp.uint32(0), jnp.float32(0)).compile()

    def checked(number, present):
        seen = np.asarray(compiled(key, jnp.uint32(number), jnp.float32(present)))
        if not np.isfinite(seen).all():
            msg = "Expected finite numbers in all that is released, got others."
            raise ArithmeticError(msg)
        return seen

    return checked


def _keys_of_block(key: Key, number: jax.Array, present: jax.Array) -> Key:
    """Returns a key for each run of a block, none of them that of another run."""
    own = jax.random.fold_in(key, 2 * number + present.astype(jnp.uint32))
    return jax.random.split(own, BLOCK)


def _attacker(
    absent: np.ndarray, present: np.ndarray, *, rate: float, mirrored: bool
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns `(releases [runs, rounds, numbers]) -> scores [runs, 2]`.

    The first score is the linear one. The second is a sum over rounds. A round with
    releases y of covariance S, moved by m if the canary takes part, adds `log(1 - q + q
    exp(<m, y>_S - |m|_S^2 / 2))`. If the other world has the mirror image, the same of
    -m is subtracted.
    """
    absent, present = absent.astype(np.float64), present.astype(np.float64)
    runs, rounds, _ = absent.shape
    centre = (absent.mean(0) + present.mean(0)) / 2
    apart = present.mean(0) - absent.mean(0)
    flat = [(w - w.mean(0)).reshape(runs, -1) for w in (absent, present)]
    linear = _solved(np.concatenate(flat), apart.ravel()).reshape(apart.shape)
    origin = centre if mirrored else absent.mean(0)
    shift = apart / rate / (2 if mirrored else 1)
    still = absent - absent.mean(0)
    weights = np.stack([_solved(still[:, t], shift[t]) for t in range(rounds)])
    lengths = np.sum(weights * shift, axis=1)
    if mirrored:  # what is still in the other world also moves by chance
        moved = rate * (1 - rate) * lengths
        weights /= np.maximum(1 - moved, 0.05)[:, None]
        lengths = np.sum(weights * shift, axis=1)

    def scores_of(seen):
        straight = np.einsum("nrf,rf->n", seen - centre, linear)
        along = np.einsum("nrf,rf->nr", seen - origin, weights)
        ratio = _mixture(along - lengths / 2, rate)
        if mirrored:
            ratio -= _mixture(-along - lengths / 2, rate)
        return np.stack([straight, ratio.sum(axis=1)], axis=1)

    return scores_of


def _mixture(log_ratio: np.ndarray, rate: float) -> np.ndarray:
    if rate >= 1:
        return log_ratio
    return np.logaddexp(math.log1p(-rate), math.log(rate) + log_ratio)


def _solved(centred: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Returns S^-1 v for the covariance S, with a ridge, in units of its diagonal."""
    covariance = centred.T @ centred / len(centred)
    scale = np.sqrt(np.diag(covariance) + vector**2)
    scale = np.where(scale > 0, scale, 1)
    ridged = covariance / np.outer(scale, scale) + RIDGE * np.eye(len(scale))
    return np.linalg.solve(ridged, vector / scale) / scale


def _best(scores, delta: float, score: int) -> tuple[float, Event]:
    """Returns the largest bound of an event on both worlds' scores, and the event.

    Thresholds are scores of all ranks, the largest included: what one world never
    does may be what gives the other away.
    """
    found = []
    for sign in (1, -1):
        worlds = [np.sort(sign * s) for s in scores]
        thresholds = np.concatenate([_ranked(s) for s in worlds])
        hits = [s.size - np.searchsorted(s, thresholds, side="right") for s in worlds]
        sizes = [s.size for s in worlds]
        for swapped in (False, True):
            order = slice(None, None, 1 if swapped else -1)
            bounds = _log_ratio(hits[order], sizes[order], delta, CHOICE)
            at = int(np.argmax(bounds))
            event = Event(score, sign, float(thresholds[at]), swapped)
            found.append((float(bounds[at]), event))
    return max(found, key=lambda one: one[0])


def _ranked(ascending: np.ndarray) -> np.ndarray:
    ranks = np.unique(np.geomspace(1, ascending.size, RANKS).astype(int))
    return ascending[-ranks]


def _bound(scores, event: Event, delta: float, confidence: float) -> float:
    worlds = scores if event.swapped else scores[::-1]  # the likely one first
    hits = [np.sum(event.sign * s > event.threshold) for s in worlds]
    return _log_ratio(hits, [s.size for s in worlds], delta, confidence).item()


def _log_ratio(hits, sizes, delta: float, confidence: float) -> np.ndarray:
    """Returns what hits in two worlds prove of epsilon, the likely one first; or 0."""
    alpha = (1 - confidence) / 2  # both sides may fail
    low = clopper_pearson(hits[0], sizes[0], alpha)[0] - delta
    high = clopper_pearson(hits[1], sizes[1], alpha)[1]
    return np.log(np.maximum(low / high, 1.0))
