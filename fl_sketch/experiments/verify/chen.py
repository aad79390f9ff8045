"""Chen et al.'s theorems and measurements: SAFL, and the tails of its sketches.

The losses are wells of a bounded intrinsic dimension, clients take whole gradients
(sigma = 0), and beta_1 is 0, with which the bounds are lowest. They hold with high
probability, so that the largest of several walks counts. The statements are those of
`theory`, which keep factors that the print lost.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import algorithms, theory, transforms
from fl_sketch.algorithms import catalog
from fl_sketch.experiments.verify import known_problems, walks
from fl_sketch.experiments.verify.known_problems import Wells
from fl_sketch.experiments.verify.rows import Row, row
from fl_sketch.theory import Bound, Constants

SEEDS = range(4)
D, B, CLIENTS, STEPS, ROUNDS = 256, 64, 4, 2, 10_000
DECAY, RATE, B1, B2, EPS = 1.5, 0.1, 0.0, 0.99, 0.1
LONG, EARLY = 1 << 17, 10  # of Corollary 2: d = 2 b, and its rounds
MEAN = "mean |grad f|^2"
DRAWS, FAILURE, LENGTH = 20_000, 0.01, 256  # of Property 3
NUMBERS, MORE = 32, 128  # two coordinates meet more often than FAILURE, and less often


def chen(operator: str) -> Iterator[Row]:
    """Yields the rows of Chen et al.'s theorems for a sketch operator."""
    task = known_problems.wells(d=D, clients=CLIENTS, decay=DECAY, seed=0)
    constants = _constants(task, operator, D if operator == "identity" else B, ROUNDS)
    step = 1 / (STEPS * math.sqrt(ROUNDS))
    bound = theory.adaptive(replace(constants, step=step))
    means = _largest_means(_squares(task, bound))
    start = float(means[0])
    yield row("Chen 3.2, corrected", "wells", MEAN, bound, means, start)
    bound = theory.adaptive_long_run(constants)
    yield row("Chen Corollary 1, corrected", "wells", MEAN, bound, means, start)

    rates = [theory.adaptive_decaying_step(constants, t + 1) for t in range(ROUNDS)]
    bound = theory.adaptive_decaying(constants)
    means = _largest_means(_squares(task, bound, np.array(rates)))
    yield row("Chen B.3, corrected", "wells", MEAN, bound, means, start)

    bound = theory.adaptive_confined(constants)
    squares, name = _squares(task, bound), "Chen 4.4, corrected"
    largest = np.maximum.accumulate(squares.max(0))[1:]
    confined = bound._replace(error=bound.largest)
    quantity = "largest |grad f|^2"
    measured = row(f"{name}: largest", "wells", quantity, confined, largest, start)
    yield measured._replace(needed=math.nan)
    means = _largest_means(squares)
    yield row(f"{name}: mean", "wells", MEAN, bound, means, start)


def early() -> Row:
    """Returns the row of Corollary 2, for a message that is long enough for it."""
    task = known_problems.wells(d=LONG, clients=CLIENTS, decay=DECAY, seed=0)
    constants = _constants(task, "srht", LONG // 2, EARLY)
    ceiling = 2 * constants.gradient + EPS * math.sqrt(EARLY)
    bound = theory.adaptive_early(constants, ceiling=ceiling)
    means, name = _largest_means(_squares(task, bound)), "Chen Corollary 2, corrected"
    return row(name, "wells", MEAN, bound, means, float(means[0]))


def _constants(task: Wells, operator: str, b: int, rounds: int) -> Constants:
    run = {"operator": operator, "b": b, "steps": STEPS, "rounds": rounds}
    server = {"server_rate": RATE, "b1": B1, "b2": B2, "eps": EPS}
    return replace(task.constants, **run, **server, noise=0.0, deviation=0.0)


def _squares(task: Wells, bound: Bound, rates: np.ndarray | None = None) -> np.ndarray:
    """Returns `|grad f|^2` on walks of SAFL, with AMSGrad as printed."""
    c = bound.constants
    op = walks.sketch_of(c.operator, c.d, c.b)
    server = transforms.paper_amsgrad(c.server_rate, B1, B2, EPS)

    def make(rate):
        return algorithms.safl(task.loss, sketch=op, client_rate=rate, server=server)

    walked = walks.walk(make, c, SEEDS, rates=rates)
    return walks.squares(task.gradient, walked)


def _largest_means(squares: np.ndarray) -> np.ndarray:
    """Returns the mean over rounds up to each, of the walk in which it is largest."""
    return walks.running_mean(squares[:, :-1]).max(0)


def property_3(operator: str, numbers: int = NUMBERS) -> Row:
    """Returns how far inner products of de-sketched vectors stray: Property 3.

    The quantile of `|<R^T R v, h> - <v, h>| / (|v| |h|)` that is exceeded with the
    probability delta, for that of several pairs of vectors for which it is largest;
    NaN stands for the bound where the paper has none for the operator.

    Args:
      numbers: the length b of a message.
    """
    op, pairs = walks.sketch_of(operator, LENGTH, numbers), _pairs(LENGTH)

    @jax.jit
    def products(keys):
        def of_pairs(key):
            sent = jax.vmap(jax.vmap(lambda x: op.apply(key, x)))(pairs)
            return jnp.sum(sent[:, 0] * sent[:, 1], axis=range(1, sent.ndim - 1))

        return jax.lax.map(of_pairs, keys, batch_size=100)

    keys = jax.random.split(jax.random.key(0), DRAWS)
    off = np.abs(np.asarray(products(keys)) - np.sum(pairs[:, 0] * pairs[:, 1], axis=1))
    worst = np.quantile(off, 1 - FAILURE, axis=0).max()
    try:
        tail = theory.tail(operator, d=LENGTH, b=numbers, failure=FAILURE)
    except theory.Unreachable:
        tail = math.nan
    constants = Constants(operator=operator, d=LENGTH, b=numbers, delta=FAILURE)
    bound = Bound("Chen et al., Property 3", constants, tail, ())
    name, quantity, curve = "Chen Property 3", "|<R'Rv - v, h>|", np.array([worst])
    measured = row(
        name, "pairs of vectors", quantity, bound, curve, math.nan, draws=DRAWS
    )
    return measured._replace(rounds=0, needed=math.nan)


def _pairs(d: int) -> np.ndarray:
    """Returns pairs of vectors of length one: spikes, flat ones and others."""
    random, spike, pair = np.random.default_rng(0), np.zeros(d), np.zeros(d)
    spike[0], pair[[0, -1]] = 1, 1
    flat, falling = np.ones(d), 1 / np.arange(1.0, d + 1)
    drawn = random.normal(size=d)
    pairs = np.array([(spike, spike), (pair, pair), (flat, flat), (falling, drawn)])
    return (pairs / np.linalg.norm(pairs, axis=2, keepdims=True)).astype(np.float32)


def tails() -> Iterator[Row]:
    """Yields the rows of Property 3: each operator but the identity, at two sizes."""
    for numbers in (NUMBERS, MORE):
        for operator in catalog.OPERATORS:
            if operator != "identity":
                yield property_3(operator, numbers)
