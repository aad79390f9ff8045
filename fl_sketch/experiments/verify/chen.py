"""Chen et al.'s theorems beside a measurement: SAFL, and the tails of its sketches.

The losses are wells of a bounded intrinsic dimension, clients take whole gradients
(sigma = 0), and beta_1 is 0, with which the bounds are lowest. They hold with high
probability, so that the largest of several walks counts. The statements are those of
`theory`, which keep factors that the print lost.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import algorithms, theory, transforms
from fl_sketch.algorithms import catalog
from fl_sketch.experiments.verify import known_problems
from fl_sketch.experiments.verify.known_problems import Wells
from fl_sketch.experiments.verify.table import (
    Row,
    row,
    running_mean,
    sketch_of,
    squares,
)

SEEDS = range(4)
D, B, CLIENTS, STEPS, ROUNDS = 256, 64, 4, 2, 10_000
DECAY, RATE, B1, B2, EPS = 1.5, 0.1, 0.0, 0.99, 0.1
LONG, EARLY = 1 << 17, 10  # of Corollary 2: d = 2 b, and its rounds
MEAN = "mean |grad f|^2"
DRAWS, FAILURE, LENGTH = 20_000, 0.01, 256  # of Property 3
NUMBERS, MORE = 32, 128  # two coordinates meet more often than FAILURE, and less often


def chen(operator: str) -> Iterator[Row]:
    """Yields the rows of Chen et al.'s theorems.

    Args:
      operator: the name of the sketch operator.
    """
    task = known_problems.wells(d=D, clients=CLIENTS, decay=DECAY, seed=0)
    constants, sizes = _constants(task), _sizes(operator, D, B)
    known = {"C": CLIENTS, "K": STEPS, "d": D, "b": sizes.b}
    known |= {"b1": B1, "b2": B2, "eps": EPS, **_of(constants)}
    step = 1 / (STEPS * math.sqrt(ROUNDS))
    found = _largest_means(task, sizes, np.full(ROUNDS, step), RATE)
    begin = float(found[0])
    names = operator, "wells", known | {"step": step, "rate": RATE}, MEAN, found
    bound = theory.adaptive_error(constants, sizes, step=step, rounds=ROUNDS)
    yield row("Chen 3.2, corrected", *names, start=begin, bound=bound)
    bound = theory.adaptive_long_run_error(constants, sizes, rounds=ROUNDS)
    yield row("Chen Corollary 1, corrected", *names, start=begin, bound=bound)

    rates = np.array(
        [
            theory.adaptive_decaying_step(number, b1=B1, steps=STEPS)
            for number in range(1, ROUNDS + 1)
        ]
    )
    found = _largest_means(task, sizes, rates, RATE)
    bound = theory.adaptive_decaying_error(constants, sizes, rounds=ROUNDS)
    names = operator, "wells", known | {"rate": RATE}, MEAN, found
    yield row("Chen B.3, corrected", *names, start=begin, bound=bound)
    yield from _confined(task, sizes, known, begin)


def _confined(
    task: Wells, sizes: theory.Sizes, known: dict[str, Any], begin: float
) -> Iterator[Row]:
    """Yields the rows of Theorem 4.4: of the largest gradient, and of the mean."""
    free = theory.Unassuming(
        task.smoothness, task.intrinsic, 0.0, task.start, B1, B2, EPS
    )
    first = theory.adaptive_confined_largest(free, sizes, rounds=ROUNDS)
    given = theory.adaptive_confined(free, sizes, rounds=ROUNDS, first=first)
    rates = np.full(ROUNDS, given.step)
    walked = _walk(task, sizes, rates, given.rate)
    found = squares(task, walked)
    known = known | {"step": given.step, "rate": given.rate}
    worst = np.maximum.accumulate(found.max(0))[1:]
    yield row(
        *(
            "Chen 4.4, corrected: largest",
            sizes.operator,
            "wells",
            known,
            "largest |grad f|^2",
            worst,
        ),
        start=begin,
        bound=given.square,
    )._replace(needed=math.nan)
    means = running_mean(found[:, :-1]).max(0)
    yield row(
        *("Chen 4.4, corrected: mean", sizes.operator, "wells", known, MEAN, means),
        start=begin,
        bound=given.error,
    )


def early() -> Row:
    """Returns the row of Corollary 2, for a message that is long enough for it."""
    task = known_problems.wells(d=LONG, clients=CLIENTS, decay=DECAY, seed=0)
    constants, sizes = _constants(task), _sizes("srht", LONG, LONG // 2)
    ceiling = 2 * task.gradient + EPS * math.sqrt(EARLY)
    step = 1 / (STEPS * math.sqrt(EARLY))
    bound = theory.adaptive_early_error(constants, sizes, rounds=EARLY, ceiling=ceiling)
    found = _largest_means(task, sizes, np.full(EARLY, step), RATE)
    known = {"C": CLIENTS, "K": STEPS, "d": LONG, "b": LONG // 2}
    known |= {"step": step, "rate": RATE, "J3": ceiling, **_of(constants)}
    names = "srht", "wells", known, MEAN, found
    return row(
        "Chen Corollary 2, corrected", *names, start=float(found[0]), bound=bound
    )


def _constants(task: Wells) -> theory.Adaptive:
    return theory.Adaptive(
        task.smoothness, task.intrinsic, task.gradient, 0.0, task.start, RATE, B1, EPS
    )


def _of(constants: theory.Adaptive) -> dict[str, Any]:
    """Returns the constants of a problem that are worth a line."""
    names = ("smoothness", "intrinsic", "gradient", "loss", "delta", "nu")
    return {name: getattr(constants, name) for name in names}


def _sizes(operator: str, d: int, b: int) -> theory.Sizes:
    b = d if operator == "identity" else b
    return theory.Sizes(operator, d=d, b=b, clients=CLIENTS, steps=STEPS)


def _walk(
    task: Wells, sizes: theory.Sizes, rates: np.ndarray, rate: float
) -> np.ndarray:
    """Returns walks of SAFL, with AMSGrad as printed."""
    op = sketch_of(sizes.operator, sizes.d, sizes.b)
    server = transforms.paper_amsgrad(rate, B1, B2, EPS)

    def make(own):
        return algorithms.safl(task.loss, sketch=op, client_rate=own, server=server)

    run = {"steps": STEPS, "clients": CLIENTS, "d": sizes.d, "seeds": SEEDS}
    return known_problems.walk(make, rates, **run)


def _largest_means(
    task: Wells, sizes: theory.Sizes, rates: np.ndarray, rate: float
) -> np.ndarray:
    """Returns the mean over rounds up to each, of the walk in which it is largest."""
    found = squares(task, _walk(task, sizes, rates, rate))[:, :-1]
    return running_mean(found).max(0)


def property_3(operator: str, numbers: int = NUMBERS) -> Row:
    """Returns how far inner products of de-sketched vectors stray: Property 3.

    The quantile of `|<R^T R v, h> - <v, h>| / (|v| |h|)` that is exceeded with the
    probability delta, for that of several pairs of vectors for which it is largest;
    NaN stands for the bound where the paper has none for the operator.

    Args:
      operator: the name of the sketch operator.
      numbers: the length b of a message.
    """
    op, pairs = sketch_of(operator, LENGTH, numbers), _pairs(LENGTH)

    @jax.jit
    def products(keys):
        def one(key):
            sent = jax.vmap(jax.vmap(lambda x: op.apply(key, x)))(pairs)
            return jnp.sum(sent[:, 0] * sent[:, 1], axis=range(1, sent.ndim - 1))

        return jax.lax.map(one, keys, batch_size=100)

    keys = jax.random.split(jax.random.key(0), DRAWS)
    off = np.abs(np.asarray(products(keys)) - np.sum(pairs[:, 0] * pairs[:, 1], axis=1))
    worst = np.quantile(off, 1 - FAILURE, axis=0).max()
    try:
        sizes = {"d": LENGTH, "b": numbers, "failure": FAILURE}
        bound = theory.tail(operator, **sizes)
    except theory.Unreachable:
        bound = math.nan
    known = {"d": LENGTH, "b": numbers, "delta": FAILURE, "draws": DRAWS}
    return row(
        *("Chen Property 3", operator, "pairs of vectors", known, "|<R'Rv - v, h>|"),
        np.array([worst]),
        start=math.nan,
        bound=bound,
    )._replace(rounds=0, needed=math.nan)


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
