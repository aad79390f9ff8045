"""Algorithms, sketches and server optimizers by the names that configs use.

The one place where a string chooses code. A new algorithm is a new row.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import optax

from fl_sketch import sketch, transforms, validate
from fl_sketch.algorithms.dp_fedavg import dp_fedavg
from fl_sketch.algorithms.fedavg import fedavg
from fl_sketch.algorithms.fedgate import fedcomgate, fedgate
from fl_sketch.algorithms.fedopt import fedopt
from fl_sketch.algorithms.fedsketch import fedsketch, fedsketchgate
from fl_sketch.algorithms.iterative_sketching import iterative_sketching
from fl_sketch.algorithms.private_sketching import private_sketching
from fl_sketch.algorithms.safl import safl
from fl_sketch.algorithms.scaffold import scaffold
from fl_sketch.algorithms.sketched_sgd import sketched_sgd
from fl_sketch.local import Loss
from fl_sketch.privacy import bounding
from fl_sketch.protocols import Algorithm, Sketch

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "dp_fedavg": dp_fedavg,
    "dp_normfedavg": functools.partial(dp_fedavg, bound=bounding.normalise),
    "fedavg": fedavg,
    "fedcomgate": fedcomgate,
    "fedgate": fedgate,
    "fedopt": fedopt,
    "fedsketch": fedsketch,
    "fedsketchgate": fedsketchgate,
    "iterative_sketching": iterative_sketching,
    "private_sketching": private_sketching,
    "safl": safl,
    "scaffold": scaffold,
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

OPERATORS: dict[str, Callable[[int, int], Sketch]] = {
    "count_sketch": lambda b, rows: sketch.count_sketch(max(1, b // rows), rows),
    "gaussian": lambda b, rows: sketch.gaussian(b),
    "srht": lambda b, rows: sketch.srht(b),
    "ams": lambda b, rows: sketch.ams(b),
    "sparse_embedding": lambda b, rows: sketch.sparse_embedding(b, min(b, 4)),
    "uniform_sampling": lambda b, rows: sketch.uniform_sampling(b),
    "identity": lambda b, rows: sketch.identity(),
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


def build_sketch(
    operator: str,
    d: int,
    *,
    compression: float,
    rows: int,
    layout: str,
    numbers: int = 0,
) -> Sketch:
    """Returns an operator that sends so many numbers, or else d / compression."""
    validate.one_of(tuple(OPERATORS), operator=operator)
    validate.one_of(tuple(LAYOUTS), layout=layout)
    validate.in_range(0, d, numbers=numbers)
    if not compression >= 1:
        msg = f"Expected compression >= 1, got compression={compression}."
        raise ValueError(msg)
    b = numbers or max(1, int(d / compression))
    return LAYOUTS[layout](OPERATORS[operator](b, rows))


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


def build(name: str, loss: Loss, **parts: Any) -> Algorithm:
    """Returns the algorithm of that name, given the parts that it takes.

    Args:
      name: one of `ALGORITHMS`.
      loss: of one batch.
      **parts: everything a config offers; an algorithm takes what it has an argument
        for.
    """
    validate.one_of(tuple(ALGORITHMS), algorithm=name)
    make = ALGORITHMS[name]
    takes = inspect.signature(make).parameters
    return make(loss, **{key: part for key, part in parts.items() if key in takes})
