"""Algorithms, sketches and server optimizers by the names that configs use.

The one place where a string chooses code. A new algorithm is a new row.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import optax

from fl_sketch import compressors, sketch, transforms, validate
from fl_sketch.algorithms.cd_adam import cd_adam
from fl_sketch.algorithms.cocktail_sgd import cocktail_sgd
from fl_sketch.algorithms.dp_fedavg import dp_fedavg
from fl_sketch.algorithms.ef21 import ef21
from fl_sketch.algorithms.fedavg import fedavg
from fl_sketch.algorithms.fedgate import fedcomgate, fedgate
from fl_sketch.algorithms.fedopt import fedopt
from fl_sketch.algorithms.fedsketch import fedsketch, fedsketchgate
from fl_sketch.algorithms.fetchsgd import fetchsgd
from fl_sketch.algorithms.iterative_sketching import iterative_sketching
from fl_sketch.algorithms.marina import marina
from fl_sketch.algorithms.onebit_adam import onebit_adam
from fl_sketch.algorithms.private_sketching import private_sketching
from fl_sketch.algorithms.qsgd import qsgd
from fl_sketch.algorithms.safl import safl
from fl_sketch.algorithms.scaffold import scaffold
from fl_sketch.algorithms.sign_sgd import ef_sign_sgd, sign_sgd
from fl_sketch.algorithms.sketched_sgd import sketched_sgd
from fl_sketch.local import Loss
from fl_sketch.privacy import bounding
from fl_sketch.protocols import Algorithm, Compressor, Sketch

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "cd_adam": cd_adam,
    "cocktail_sgd": cocktail_sgd,
    "dp_fedavg": dp_fedavg,
    "dp_normfedavg": functools.partial(dp_fedavg, bound=bounding.normalise),
    "ef21": ef21,
    "ef_sign_sgd": ef_sign_sgd,
    "fedavg": fedavg,
    "fedcomgate": fedcomgate,
    "fedgate": fedgate,
    "fedopt": fedopt,
    "fedsketch": fedsketch,
    "fedsketchgate": fedsketchgate,
    "fetchsgd": fetchsgd,
    "iterative_sketching": iterative_sketching,
    "marina": marina,
    "onebit_adam": onebit_adam,
    "private_sketching": private_sketching,
    "qsgd": qsgd,
    "safl": safl,
    "scaffold": scaffold,
    "sign_sgd": sign_sgd,
    "sketched_sgd": sketched_sgd,
}

OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "sgd": lambda rate, b1, b2, eps: optax.sgd(rate),
    "momentum": lambda rate, b1, b2, eps: optax.sgd(rate, momentum=b1),
    "adam": lambda rate, b1, b2, eps: optax.adam(rate, b1, b2, eps),
    "amsgrad": lambda rate, b1, b2, eps: optax.amsgrad(rate, b1, b2, eps),
    "paper_amsgrad": lambda rate, b1, b2, eps: transforms.paper_amsgrad(
        rate, b1, b2, eps
    ),
    "yogi": lambda rate, b1, b2, eps: optax.yogi(rate, b1, b2, eps),
    "adagrad": lambda rate, b1, b2, eps: optax.adagrad(rate, eps=eps),
}

COMPRESSORS: dict[str, Callable[[int, float, int], Compressor]] = {
    "top_k": lambda d, bits, levels: compressors.top_k(
        max(1, min(d, int(bits / (32 + (d - 1).bit_length()))))
    ),
    "random_k": lambda d, bits, levels: compressors.random_k(
        max(1, min(d, int(bits / 32) - 2))
    ),
    "scaled_sign": lambda d, bits, levels: compressors.scaled_sign(),
    "qsgd": lambda d, bits, levels: compressors.qsgd(levels),
    "nearest": lambda d, bits, levels: compressors.nearest(levels),
    "cocktail": lambda d, bits, levels: _cocktail(d, bits, levels),
}

OPERATORS: dict[str, Callable[[int, int, str], Sketch]] = {
    "count_sketch": lambda b, rows, query: sketch.count_sketch(
        max(1, b // rows), rows, query=query
    ),
    "gaussian": lambda b, rows, query: sketch.gaussian(b),
    "srht": lambda b, rows, query: sketch.srht(b),
    "ams": lambda b, rows, query: sketch.ams(b),
    "sparse_embedding": lambda b, rows, query: sketch.sparse_embedding(b, min(b, 4)),
    "uniform_sampling": lambda b, rows, query: sketch.uniform_sampling(b),
    "identity": lambda b, rows, query: sketch.identity(),
}

SCHEDULES: dict[str, Callable[..., optax.ScalarOrSchedule]] = {
    "constant": lambda rate, floor, rounds: rate,
    "cosine": lambda rate, floor, rounds: optax.cosine_decay_schedule(
        rate, rounds, alpha=floor / rate
    ),
}

LAYOUTS: dict[str, Callable[[Sketch], Sketch]] = {
    "whole": lambda op: op,
    "leaves": sketch.leaf_by_leaf,
}

# Those whose papers take the median over rows; for all others R^T is what it says.
MEDIANS = ("fedsketch", "fedsketchgate", "fetchsgd", "sketched_sgd")

STORED = 0x570  # the seed of matrices that are stored


def build_sketch(
    operator: str,
    d: int,
    *,
    compression: float,
    rows: int,
    layout: str,
    numbers: int = 0,
    stored: bool = False,
    query: str = "mean",
) -> Sketch:
    """Returns an operator that sends so many numbers, or else d / compression.

    Stored, it is one matrix for all rounds and takes that times d.
    """
    validate.one_of(tuple(OPERATORS), operator=operator)
    validate.one_of(tuple(LAYOUTS), layout=layout)
    validate.in_range(0, d, numbers=numbers)
    require_compression(compression)
    b = numbers or max(1, int(d / compression))
    validate.at_most(b, "the numbers of the sketch", rows=rows)
    op = OPERATORS[operator](b, rows, query)
    return LAYOUTS[layout](sketch.stored(op, jax.random.key(STORED)) if stored else op)


def build_compressor(
    name: str, d: int, *, compression: float, levels: int
) -> Compressor:
    """Returns a compressor whose messages have about 32 d / compression bits.

    Those that have one size take that: signs 32 times fewer bits, QSGD by its levels.
    """
    validate.one_of(tuple(COMPRESSORS), name=name)
    require_compression(compression)
    return COMPRESSORS[name](d, 32 * d / compression, levels)


def require_compression(compression: float) -> None:
    """Raises a ValueError unless messages would be as long as the model or shorter."""
    if not 1 <= compression < math.inf:
        msg = f"Expected compression >= 1, got compression={compression}."
        raise ValueError(msg)


def _cocktail(d: int, bits: float, levels: int) -> Compressor:
    """Returns a tenth of the numbers at random, the largest of these, rounded.

    Where a tenth would be too few for the bits, all of them. Rounded to the nearest
    level, as the authors' code does it: error feedback cannot take back the errors of
    QSGD's, which are longer than what it rounds.
    """

    def fitting(chosen):
        each = 1 + levels.bit_length() + (chosen - 1).bit_length()
        return max(1, min(chosen, int((bits - 96) / each)))  # a scale and a seed: 96

    chosen = max(1, d // 10)
    if fitting(chosen) == chosen:
        chosen = d
    return compressors.then(
        compressors.random_k(chosen, unbiased=False),
        compressors.top_k(fitting(chosen)),
        compressors.nearest(levels),
    )


def build_schedule(
    name: str, rate: float, *, floor: float, rounds: int
) -> optax.ScalarOrSchedule:
    """Returns the server's rate in every round, from `rate` to `floor`."""
    validate.one_of(tuple(SCHEDULES), schedule=name)
    if not isinstance(rate, jax.core.Tracer):
        validate.in_range(0, rate, floor=floor)
    return SCHEDULES[name](rate, floor, rounds)


def build_optimizer(
    name: str, rate: optax.ScalarOrSchedule, *, b1: float, b2: float, eps: float
) -> optax.GradientTransformation:
    """Returns a server optimizer; each reads those of the numbers that it has."""
    validate.one_of(tuple(OPTIMIZERS), optimizer=name)
    return OPTIMIZERS[name](rate, b1, b2, eps)


def taken_by(name: str) -> tuple[str, ...]:
    """Returns the names of what an algorithm takes; a wrong name is a ValueError."""
    validate.one_of(tuple(ALGORITHMS), algorithm=name)
    return tuple(inspect.signature(ALGORITHMS[name]).parameters)


def build(name: str, loss: Loss, **parts: Any) -> Algorithm:
    """Returns the algorithm of that name, given the parts that it takes.

    Args:
      name: one of `ALGORITHMS`.
      loss: of one batch.
      **parts: everything a config offers; an algorithm takes what it has an argument
        for.
    """
    takes = taken_by(name)
    given = {key: part for key, part in parts.items() if key in takes}
    return ALGORITHMS[name](loss, **given)
