"""The distinguishing game: a lower bound on epsilon from many runs of two worlds.

The same few rounds are played many times with fresh randomness, in a world without a
canary and in one with it. An attacker who sees every release learns from some of the
runs how the worlds differ, and guesses the world of the others by a score. The
frequencies of right and wrong guesses bound epsilon from below (Clopper-Pearson). A
bound above the claim proves that the claim is wrong; one below it proves nothing.

A plan claims an epsilon for every delta. At a small delta only rare outputs exceed a
false claim, at a larger one common outputs do. So the game is judged at the delta where
the attacker does best. A claim that is broken there shows that the mechanism is not
what the accountant counted.

There are two scores. The linear one is Fisher's discriminant: it weighs the releases by
the inverse of their covariance, and if several share noise, it finds the combination
without noise. The other is the likelihood ratio of Gaussian releases in which the
canary takes part by chance.

Reference: Nasr et al. (2023), Tight Auditing of Differentially Private Machine
Learning.
"""

import itertools
import math
import time
from collections.abc import Callable
from concurrent import futures
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine
from fl_sketch.core import validate
from fl_sketch.core.protocols import Key, Roots

# `(key, present) -> float32 [rounds, numbers]`: all that a run releases. Whether the
# canary is present, 0.0 or 1.0, is traced, so that one program plays both worlds.
Observe = Callable[[Key | Roots, jax.Array], jax.Array]

BLOCK = 4096  # runs of one call: their values stay in a core's cache
PARTS = (1, 2, 5)  # of eight: runs to learn from, to choose an event, and to count
MULTIPLE = sum(PARTS) * BLOCK  # runs of a world come in multiples of these
RIDGE = 1e-6  # of the attacker's covariances, over their diagonals
CHOICE = 0.999  # confidence by which events are compared: fewer are chosen by luck
RANKS = 60  # thresholds to try at each end of the scores of each world
LEAST_CLAIM = 0.1  # at the deltas where the game is judged, over that at its own


class Found(NamedTuple):
    """What an audit proves."""

    what: str  # was audited, in words
    claimed_epsilon: float  # at `delta`
    delta: float
    found_epsilon: float  # a lower bound on the true one there
    confidence: float
    trials: int  # runs of each world, or canaries
    most_epsilon: float  # that so many trials could prove
    seconds: float

    @property
    def broken(self) -> bool:
        """Whether the claim is shown to be wrong."""
        return self.found_epsilon > self.claimed_epsilon


def play(
    observe: Observe,
    claim: Callable[[float], float],
    *,
    delta: float,
    trials: int,
    key: Key | Roots,
    rate: float = 1.0,
    confidence: float = 0.95,
    what: str = "game",
) -> Found:
    """Returns how well an attacker distinguishes two worlds.

    The `claim` has the epsilon of every delta, of which `delta` is the smallest; `rate`
    is the probability that the canary takes part in a round.
    """
    begin = time.perf_counter()
    validate.at_least_one(trials=trials)
    validate.in_range(0, 1, delta=delta, rate=rate, confidence=confidence)
    blocks = math.ceil(trials / MULTIPLE)
    run = _program(observe, key)

    def worlds(first, parts, of=lambda releases: releases):
        """Returns `of` the releases of some of the runs, for each world."""
        numbers = range(first * blocks, (first + parts) * blocks)
        tasks = [(number, present) for number in numbers for present in (0.0, 1.0)]
        with futures.ThreadPoolExecutor(engine.cores()) as pool:
            results = list(pool.map(lambda task: of(run(*task)), tasks))
        return [np.concatenate(results[world::2]) for world in (0, 1)]

    learn, choose, count = PARTS
    absent, present = worlds(0, learn)
    scores_of = _attacker(absent, present, rate)
    every = [delta]
    while every[-1] < 0.1:
        every.append(every[-1] * 10**0.5)
    deltas, claims = np.array(every), np.array([claim(one) for one in every])
    kept = claims >= LEAST_CLAIM * claims[0]  # others are too small to be of interest
    deltas, claims = deltas[kept], claims[kept]
    pilot = worlds(learn, choose, scores_of)
    score, sign, threshold, swapped, judged = _best(pilot, deltas, claims)
    counted, at = worlds(learn + choose, count, scores_of), float(deltas[judged])
    scores = [sign * world[:, score] for world in counted]
    likely_first = scores if swapped else scores[::-1]
    hits = [np.sum(world > threshold) for world in likely_first]
    sizes = len(counted[0]), len(counted[1])
    return Found(
        what,
        float(claims[judged]),
        at,
        _log_ratio(hits, sizes, at, confidence).item(),
        confidence,
        blocks * MULTIPLE,
        _log_ratio((sizes[0], 0), sizes, at, confidence).item(),
        time.perf_counter() - begin,
    )


def clopper_pearson(hits, count, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns bounds on a probability, each of which is wrong with one of `alpha`."""
    from scipy import stats  # takes half a second to import

    hits, count = np.asarray(hits, float), np.asarray(count, float)
    low = stats.beta.ppf(alpha, np.maximum(hits, 0.5), count - hits + 1)
    high = stats.beta.ppf(1 - alpha, hits + 1, np.maximum(count - hits, 0.5))
    return np.where(hits > 0, low, 0.0), np.where(hits < count, high, 1.0)


def _program(observe: Observe, key: Key | Roots) -> Callable[..., np.ndarray]:
    """Returns `(block, present) -> float32 [BLOCK, rounds, numbers]`."""

    @jax.jit
    def run(key, number, present):
        keys = jax.tree.map(lambda root: _keys_of_block(root, number, present), key)
        return jax.vmap(lambda key: observe(key, present))(keys)

    # Threads that call it would each compile it.
    compiled = run.lower(key, jnp.uint32(0), jnp.float32(0)).compile()

    def checked(number, present):
        releases = np.asarray(compiled(key, jnp.uint32(number), jnp.float32(present)))
        if not np.isfinite(releases).all():
            msg = "Expected finite releases, got other numbers."
            raise ArithmeticError(msg)
        return releases

    return checked


def _keys_of_block(key: Key, number: jax.Array, present: jax.Array) -> Key:
    """Returns a key for each run of a block; no two runs share one."""
    block_key = jax.random.fold_in(key, 2 * number + present.astype(jnp.uint32))
    return jax.random.split(block_key, BLOCK)


def _attacker(
    absent: np.ndarray, present: np.ndarray, rate: float
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns `(releases [runs, rounds, numbers]) -> scores [runs, 2]`.

    The first score is the linear one. The second is a sum over rounds. A round with
    releases y of covariance S, moved by m if the canary takes part, adds `log(1 - q + q
    exp(<m, y>_S - |m|_S^2 / 2))`.
    """
    absent, present = absent.astype(np.float64), present.astype(np.float64)
    runs, rounds, _ = absent.shape
    centre = (absent.mean(0) + present.mean(0)) / 2
    apart = present.mean(0) - absent.mean(0)
    flat = [(world - world.mean(0)).reshape(runs, -1) for world in (absent, present)]
    linear = _solved(np.concatenate(flat), apart.ravel()).reshape(apart.shape)
    origin, shift = absent.mean(0), apart / rate
    still = absent - origin
    weights = np.stack([_solved(still[:, t], shift[t]) for t in range(rounds)])
    lengths = np.sum(weights * shift, axis=1)

    def scores_of(releases):
        straight = np.einsum("nrf,rf->n", releases - centre, linear)
        along = np.einsum("nrf,rf->nr", releases - origin, weights)
        ratio = along - lengths / 2
        if rate < 1:
            ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + ratio)
        return np.stack([straight, ratio.sum(axis=1)], axis=1)

    return scores_of


def _solved(centred: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Returns S^-1 v for the covariance S, with a ridge, in units of its diagonal."""
    covariance = centred.T @ centred / len(centred)
    scale = np.sqrt(np.diag(covariance) + vector**2)
    scale = np.where(scale > 0, scale, 1)
    ridged = covariance / np.outer(scale, scale) + RIDGE * np.eye(len(scale))
    return np.linalg.solve(ridged, vector / scale) / scale


def _best(scores, deltas: np.ndarray, claims: np.ndarray):
    """Returns the event and the number of the delta with the largest bound over claim.

    An event is (number of a score, sign, threshold, swapped): sign times the score is
    above the threshold, which is likely in one world only; `swapped`: in the one
    without the canary. Thresholds are scores of all ranks, the largest included, since
    outputs of one world alone give it away.
    """
    candidates = []
    ranks = np.unique(np.geomspace(1, len(scores[0]), RANKS).astype(int))
    for number, sign in itertools.product(range(scores[0].shape[1]), (1, -1)):
        worlds = [np.sort(sign * world[:, number]) for world in scores]
        thresholds = np.concatenate([world[-ranks] for world in worlds])
        hits = [w.size - np.searchsorted(w, thresholds, side="right") for w in worlds]
        sizes = [world.size for world in worlds]
        for swapped in (False, True):
            order = slice(None, None, 1 if swapped else -1)
            bounds = _log_ratio(hits[order], sizes[order], deltas[:, None], CHOICE)
            over = bounds / np.maximum(claims[:, None], 1e-9)
            judged, at = np.unravel_index(np.argmax(over), over.shape)
            event = number, sign, float(thresholds[at]), swapped, int(judged)
            candidates.append((over[judged, at], event))
    return max(candidates, key=lambda candidate: candidate[0])[1]


def _log_ratio(hits, sizes, delta, confidence: float) -> np.ndarray:
    """Returns the bound that hits in two worlds prove, the likely world first; or 0.

    (epsilon, delta) privacy means P(A | one) <= e^epsilon P(A | other) + delta for
    every event A, both ways.
    """
    alpha = (1 - confidence) / 2  # both sides may fail
    low = clopper_pearson(hits[0], sizes[0], alpha)[0] - delta
    high = clopper_pearson(hits[1], sizes[1], alpha)[1]
    return np.log(np.maximum(low / high, 1.0))
