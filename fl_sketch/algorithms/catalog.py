"""Algorithms, sketches and server optimizers by the names that configs use.

Only here a string chooses code, and only here are facts about an algorithm by its name.
A new algorithm is a new row.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import optax

from fl_sketch import algorithms, sketch, transforms
from fl_sketch.core import plugins, validate
from fl_sketch.core.keys import Purpose
from fl_sketch.core.protocols import Algorithm, Compressor, Sketch
from fl_sketch.privacy import clipping
from fl_sketch.sketch import compressors


class Method(NamedTuple):
    """What a config must know of an algorithm; `register` adds a user's own.

    Attributes:
      name: the value of `config.algorithm`.
      make: `(loss, **arguments) -> Algorithm`. Arguments with the names of
        `config.arguments` are made from a config; others have defaults.
      bound: its own bound on messages: "clip" or "normalise".
      unit: the unit that its noise protects: "client" by a mechanism, which any
        algorithm may have; "example" by its own noise, at every local step.
      one_key: whether all rounds share one set of hashes, which is in the code.
      one_batch: whether a client takes one gradient, of its first batch, and
        `client.steps` is not read.
      parameters_only: whether its models may not have statistics, only parameters.
      vectors: whether it sketches vectors of all parameters, which cannot be sharded.
      optimizer: the server optimizer that its name says; empty: that of the config.
    """

    name: str
    make: Callable[..., Algorithm]
    bound: str = "none"
    unit: str = "client"
    one_key: bool = False
    one_batch: bool = False
    parameters_only: bool = False
    vectors: bool = False
    optimizer: str = ""

    @property
    def takes(self) -> tuple[str, ...]:
        """Names of the arguments of `make` except the loss."""
        return tuple(inspect.signature(self.make).parameters)[1:]

    @property
    def requires(self) -> tuple[str, ...]:
        """Names of those of `takes` without a default."""
        parameters = list(inspect.signature(self.make).parameters.values())[1:]
        plain = (p for p in parameters if p.kind is not p.VAR_KEYWORD)
        return tuple(p.name for p in plain if p.default is p.empty)


_NORMALISED = functools.partial(algorithms.dp_fedavg, bound=clipping.normalise)
_HALVES = functools.partial(algorithms.safl, moments="halves")
_BUILT_IN = (
    Method("cd_adam", algorithms.cd_adam, one_batch=True),
    Method("cocktail_sgd", algorithms.cocktail_sgd),
    Method("dp_fedavg", algorithms.dp_fedavg, bound="clip"),
    Method("dp_normfedavg", _NORMALISED, bound="normalise"),
    Method("ef21", algorithms.ef21, one_batch=True),
    Method("ef_sign_sgd", algorithms.ef_sign_sgd),
    Method("fedavg", algorithms.fedavg),
    Method("fedcams", algorithms.fedcams),
    Method("fedcomgate", algorithms.fedcomgate),
    Method("fedgate", algorithms.fedgate),
    Method("fedopt", algorithms.fedopt),
    Method("fedsketch", algorithms.fedsketch),
    Method("fedsketchgate", algorithms.fedsketchgate),
    Method("fetchsgd", algorithms.fetchsgd, one_key=True, one_batch=True),
    Method("iterative_sketching", algorithms.iterative_sketching),
    Method("marina", algorithms.marina, one_batch=True, parameters_only=True),
    Method("onebit_adam", algorithms.onebit_adam, one_batch=True, parameters_only=True),
    Method("private_sketching", algorithms.private_sketching, unit="example"),
    Method("qsgd", algorithms.qsgd, one_batch=True),
    Method("sadl", _HALVES, optimizer="paper_amsgrad"),
    Method("safl", algorithms.safl),
    Method("scaffold", algorithms.scaffold),
    Method("sign_sgd", algorithms.sign_sgd, one_batch=True),
    Method("sketched_sgd", algorithms.sketched_sgd, one_batch=True, vectors=True),
)
_METHODS = {method.name: method for method in _BUILT_IN}
SERVERS = {  # what papers call FedOpt with one of `OPTIMIZERS`
    "fedadagrad": "adagrad",
    "fedadam": "adam",
    "fedamsgrad": "amsgrad",
    "fedavgm": "momentum",
    "fedyogi": "yogi",
}


def methods() -> dict[str, Method]:
    """Returns all algorithms by name, with registered ones, in a new dictionary."""
    return dict(_METHODS)


def method(name: str) -> Method:
    """Returns the algorithm of a name, or of FILE.py:NAME: a function or a Method."""
    if plugins.named(name):
        plugin = plugins.load(name)
        plugin = plugin if isinstance(plugin, Method) else Method(name, plugin)
        _require_usable(plugin)
        return plugin._replace(name=name)
    if name in SERVERS:
        return _METHODS["fedopt"]._replace(name=name, optimizer=SERVERS[name])
    validate.one_of((*_METHODS, *SERVERS, plugins.SHAPE), algorithm=name)
    return _METHODS[name]


def register(method: Method) -> None:
    """Gives a user's algorithm a name, which configs may then use.

    Call it in a config file or a notebook, before anything is built. A later call may
    replace a registered algorithm, as when a file is read twice.
    """
    _require_usable(method)
    if method.name in {*SERVERS, *(built_in.name for built_in in _BUILT_IN)}:
        msg = f"The algorithm {method.name!r} exists: register another name."
        raise ValueError(msg)
    _METHODS[method.name] = method


def _require_usable(method: Method) -> None:
    """Raises unless this is a method that a config could call."""
    if not (isinstance(method, Method) and callable(method.make)):
        msg = f"Expected catalog.Method(name, make) with a function, got {method!r}."
        raise TypeError(msg)
    validate.one_of(("none", "clip", "normalise"), bound=method.bound)
    validate.one_of(("client", "example"), unit=method.unit)
    try:
        parameters = inspect.signature(method.make).parameters.values()
    except ValueError:  # of a built-in type
        parameters = ()
    kinds = [parameter.kind.name for parameter in parameters]
    takes_loss = kinds[:1] in (["POSITIONAL_ONLY"], ["POSITIONAL_OR_KEYWORD"])
    if not takes_loss or {"POSITIONAL_ONLY", "VAR_POSITIONAL"} & {*kinds[1:]}:
        msg = f"make of {method.name} must take the loss, and all else by names."
        raise TypeError(msg)
    if method.unit == "example" and "noise_multiplier" not in method.takes:
        msg = f"{method.name} has unit='example': make must take noise_multiplier."
        raise ValueError(msg)


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "sgd": lambda rate, b1, b2, eps: optax.sgd(rate),
    "momentum": lambda rate, b1, b2, eps: optax.sgd(rate, momentum=b1),
    "adam": optax.adam,
    "amsgrad": optax.amsgrad,
    "paper_amsgrad": transforms.paper_amsgrad,
    "scalar_adam": transforms.scalar_adam,
    "yogi": optax.yogi,
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
    size: int = 0,
    stored: bool = False,
    parts: int = 1,
) -> Sketch:
    """Returns an operator whose messages have `size` entries, or d / compression.

    >>> build_sketch(
    ...     "count_sketch", 1000, compression=10, rows=5, layout="whole"
    ... ).zeros().shape
    (5, 20)

    Args:
      operator: one of `OPERATORS`.
      d: the number of parameters of the model.
      rows: rows of a count sketch; not for other operators.
      layout: one of `LAYOUTS`: a sketch of the whole update, or of each leaf.
      stored: whether the operator is one matrix for all rounds, which takes the size of
        a message times d.
      parts: the number of devices that share a model, each of which sketches its part.
    """
    validate.one_of(tuple(OPERATORS), operator=operator)
    validate.one_of(tuple(LAYOUTS), layout=layout)
    validate.in_range(0, d, size=size)
    require_compression(compression)
    b = size or max(1, int(d / compression))
    validate.at_most(b, "the size of the sketch", rows=rows)
    op = _stored(operator, b, rows) if stored else OPERATORS[operator](b, rows)
    if parts > 1 and operator != "identity":
        if stored:
            msg = "stored=True does not work for models over several devices."
            raise ValueError(msg)
        op = sketch.sharded(op, parts)
    return op if operator == "identity" else LAYOUTS[layout](op)


@functools.lru_cache(maxsize=1)  # a matrix may be large
def _stored(operator: str, b: int, rows: int) -> Sketch:
    """Returns an operator with its matrix, one for all programs.

    Its key is a value even while a program is traced: else the matrix would be a part
    of that program.
    """
    with jax.ensure_compile_time_eval():
        key = jax.random.key(int(Purpose.STORED))
    return sketch.materialized(OPERATORS[operator](b, rows), key)


def build_compressor(
    name: str, d: int, *, compression: float, levels: int
) -> Compressor:
    """Returns one of `COMPRESSORS`, with messages of about 32 d / compression bits.

    Some have a fixed size instead: signs 32 times fewer bits, QSGD by its `levels`.
    """
    validate.one_of(tuple(COMPRESSORS), name=name)
    require_compression(compression)
    return COMPRESSORS[name](d, 32 * d / compression, levels)


def require_compression(compression: float) -> None:
    """Raises a ValueError unless `compression` is a finite number >= 1."""
    if not 1 <= compression < math.inf:
        msg = f"Expected compression >= 1, got compression={compression}."
        raise ValueError(msg)


def _cocktail(d: int, bits: float, levels: int) -> Compressor:
    """Returns a tenth of the numbers at random, the largest of these, rounded.

    Where a tenth would be too few for the bits, it begins with all numbers. They are
    rounded to the nearest level, as in the authors' code: QSGD's errors are longer than
    its input, which no error feedback survives.
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
    name: str, rate: float | jax.Array, *, floor: float | jax.Array, rounds: int
) -> optax.ScalarOrSchedule:
    """Returns one of `SCHEDULES`: the server's rate, or a function of the round.

    The first rate is `rate`, the last one of a cosine is `floor`. Both may be traced.
    """
    validate.one_of(tuple(SCHEDULES), schedule=name)
    if validate.is_known(rate):
        validate.in_range(0, rate, floor=floor)
    return SCHEDULES[name](rate, floor, rounds)


def build_optimizer(
    name: str,
    rate: optax.ScalarOrSchedule,
    *,
    b1: float | jax.Array,
    b2: float | jax.Array,
    eps: float | jax.Array,
) -> optax.GradientTransformation:
    """Returns one of `OPTIMIZERS`; `b1` is also the momentum of "momentum"."""
    validate.one_of(tuple(OPTIMIZERS), optimizer=name)
    return OPTIMIZERS[name](rate, b1, b2, eps)
