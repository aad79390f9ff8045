"""From the keys of a config to the arguments of algorithms: the one table of both.

An algorithm's arguments are found by their names, and only those that it takes are
made. Which keys change nothing for an algorithm follows from the same rows.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import optax
from ml_collections import ConfigDict

from fl_sketch.algorithms import catalog
from fl_sketch.config.parse import Numbers, section
from fl_sketch.core import pretrained, validate
from fl_sketch.core.mappings import flat
from fl_sketch.core.protocols import Compressor, Sketch
from fl_sketch.privacy import lattice
from fl_sketch.transforms import by_name


class Parts(NamedTuple):
    """What arguments are made of.

    Attributes:
      config: the config, checked.
      d: the number of the model's parameters.
      numbers: the continuous keys.
      noise_multiplier: z, for algorithms that add noise by themselves.
    """

    config: ConfigDict
    d: int
    numbers: Numbers
    noise_multiplier: float = 0.0


class Argument(NamedTuple):
    """One argument of algorithms.

    Attributes:
      keys: the keys of a config, which nothing but this and other arguments read.
      make: `(parts) -> value`, what it is made by.
    """

    keys: tuple[str, ...]
    make: Callable[[Parts], Any]


def sketch_of(config: ConfigDict, d: int) -> Sketch:
    """Returns the operator of the sketch section of `config`, for `d` parameters.

    Raises:
      ValueError: in one line, for an operator that cannot be.
    """
    sketch = config.sketch
    with section("sketch"):
        return catalog.build_sketch(
            sketch.operator,
            d,
            compression=sketch.compression,
            numbers=sketch.numbers,
            rows=sketch.rows,
            layout=sketch.layout,
            stored=sketch.stored,
            parts=config.compute.model_devices,
        )


def _number(key: str) -> Argument:
    """Returns an argument that is a continuous key as it is."""
    return Argument((key,), lambda parts: parts.numbers[key])


def _value(key: str) -> Argument:
    """Returns an argument that is a key as it is."""
    return Argument((key,), lambda parts: flat(parts.config)[key])


def _server_rate(parts: Parts) -> optax.ScalarOrSchedule:
    with section("server"):
        return catalog.build_schedule(
            parts.config.server.schedule,
            parts.numbers["server.rate"],
            floor=parts.numbers["server.floor"],
            rounds=parts.config.rounds,
        )


def _server(parts: Parts) -> optax.GradientTransformation:
    method, rate = catalog.method(parts.config.algorithm), _server_rate(parts)
    optimizer = method.optimizer or parts.config.server.optimizer
    with section("server"):
        numbers = {key: parts.numbers[f"server.{key}"] for key in ("b1", "b2", "eps")}
        return catalog.build_optimizer(optimizer, rate, **numbers)


def _client_optimizer(parts: Parts) -> by_name.Optimizer:
    with section("client"):
        make = by_name.optimizer(parts.config.client.optimizer)
        return by_name.decoupled(make, parts.numbers["client.weight_decay"])


def _compressor(parts: Parts, name: str) -> Compressor:
    compressor = parts.config.compressor
    with section("compressor"):
        return catalog.build_compressor(
            name,
            parts.d,
            compression=compressor.compression,
            levels=compressor.levels,
        )


def _gain(parts: Parts):
    moved = parts.numbers["client.rate"] * parts.config.client.steps
    return parts.numbers["client.gain"] / moved


def _warmup(parts: Parts) -> int:
    return max(1, round(parts.config.server.warmup * parts.config.rounds))


_RATE = ("server.rate", "server.schedule", "server.floor")
_OPTIMIZER = ("server.optimizer", "server.b1", "server.b2", "server.eps")
_SHORT = ("compressor.compression", "compressor.levels")
_SKETCH = ("operator", "compression", "numbers", "rows", "layout", "stored")

ARGUMENTS: dict[str, Argument] = {
    "client_rate": _number("client.rate"),
    "client_optimizer": Argument(
        ("client.optimizer", "client.weight_decay"), _client_optimizer
    ),
    "client_clip": _number("client.clip"),
    "proximal": _number("client.proximal"),
    "decay": _number("client.decay"),
    "gain": Argument(("client.rate", "client.gain"), _gain),
    "steps": Argument((), lambda parts: parts.config.client.steps),
    "cohort": Argument((), lambda parts: parts.config.cohort.size),
    "server": Argument((*_RATE, *_OPTIMIZER), _server),
    "server_rate": Argument(_RATE, _server_rate),
    "momentum": _number("server.b1"),
    "b1": _number("server.b1"),
    "b2": _number("server.b2"),
    "eps": _number("server.eps"),
    "warmup": Argument(("server.warmup",), _warmup),
    "sketch": Argument(
        tuple(f"sketch.{key}" for key in _SKETCH),
        lambda parts: sketch_of(parts.config, parts.d),
    ),
    "query": _value("sketch.query"),
    "heavy": _value("sketch.heavy"),
    "values": _value("sketch.heavy_values"),
    "fill": _value("sketch.heavy_fill"),
    "forget": _value("sketch.forget"),
    "masking": _value("sketch.masking"),
    "compressor": Argument(
        ("compressor.name", *_SHORT),
        lambda parts: _compressor(parts, parts.config.compressor.name),
    ),
    "cocktail": Argument(_SHORT, lambda parts: _compressor(parts, "cocktail")),
    "levels": _value("compressor.levels"),
    "probability": _value("compressor.probability"),
    "threshold": _number("privacy.threshold"),
    "noise_multiplier": Argument((), lambda parts: parts.noise_multiplier),
}

RATES = ("client.rate", "server.rate")

# Keys, and with which values of another key they are read; None: with any but none.
ASKED_FOR = {
    "data.alpha": ("data.partition", ("dirichlet", "mixtures")),
    "data.per_client": ("data.partition", ("label_shards", "classes")),
    "data.exponent": ("data.partition", ("power_law",)),
    "model.fresh": ("model.init_from", None),
    "server.floor": ("server.schedule", ("cosine",)),
    "privacy.smallest_cohort": ("privacy.noise", lattice.KINDS),
    "privacy.quantile": ("privacy.bound", ("adaptive",)),
    "privacy.quantile_rate": ("privacy.bound", ("adaptive",)),
    "privacy.quantile_noise": ("privacy.bound", ("adaptive",)),
}


def taken(method: catalog.Method, parts: Parts) -> dict[str, Any]:
    """Returns the arguments that an algorithm takes by name, and no others are made.

    Raises:
      ValueError: for an algorithm that takes what no config has.
    """
    strange = [name for name in method.requires if name not in ARGUMENTS]
    if strange:
        msg = (
            f"Expected the arguments of algorithm={method.name} to have defaults or to "
            f"be among {', '.join(ARGUMENTS)}, got {strange[0]!r}."
        )
        raise ValueError(msg + validate.nearest(strange[0], tuple(ARGUMENTS)))
    return {name: ARGUMENTS[name].make(parts) for name in _known(method)}


def unread(config: ConfigDict, default: ConfigDict) -> Iterator[str]:
    """Yields `key=value` of what was changed and is not read.

    These are keys of other algorithms' arguments, and keys that are read only with
    another value of a second one (`ASKED_FOR`).

    Args:
      config: a config as a run would have it.
      default: the config that it was changed from, with every legal key.
    """
    before, now = flat(default), flat(config)
    method, model = catalog.method(config.algorithm), config.model.name
    read = _read(method)
    if pretrained.named(model):  # whose tokens are its own
        now["model.init_from"] = now["model.init_from"] or model
        if now["data.vocabulary"] != before["data.vocabulary"]:
            yield f"data.vocabulary={now['data.vocabulary']}"
    if config.privacy.bound != "none":
        read.add("privacy.threshold")
    carried = {key for argument in ARGUMENTS.values() for key in argument.keys}
    if not method.one_batch:
        read.add("client.steps")
    carried.add("client.steps")
    for key in (key for key in now if key in carried and key not in read):
        if now[key] != before[key]:
            yield f"{key}={now[key]}"
    for key, (other, values) in ASKED_FOR.items():
        asked = bool(now[other]) if values is None else now[other] in values
        if now[key] != before[key] and not asked:
            yield f"{key}={now[key]}"


def one_gradient(config: ConfigDict) -> str:
    """Returns a line on a method whose clients take no steps; empty for others."""
    if not catalog.method(config.algorithm).one_batch:
        return ""
    return (
        f"clients of {config.algorithm} send one gradient a round, of client.batch="
        f"{config.client.batch} examples, and take no local steps"
    )


def small_step(config: ConfigDict, default: ConfigDict) -> str:
    """Returns a line on a server that hardly moves, as adaptive ones do; or none.

    The step of the config that it was changed from, `default`, suits adaptive servers.
    """
    method, rate = catalog.method(config.algorithm), config.server.rate
    averages = {"client_rate", "server_rate"} <= {*method.takes}
    if method.one_batch or not averages or rate != default.server.rate:
        return ""
    return (
        f"with server.rate={rate:g}, {config.algorithm} moves the model by that share "
        "of the clients' mean update; server.rate=1.0 takes the whole update"
    )


def by_length(config: ConfigDict) -> Iterator[str]:
    """Yields `key=value` of what `config` reads that depends on how long it runs."""
    read, server = _read(catalog.method(config.algorithm)), config.server
    if "server.schedule" in read and server.schedule != "constant":
        yield f"server.schedule={server.schedule}"
    if "server.warmup" in read:
        yield f"server.warmup={server.warmup}"


def advice(config: ConfigDict) -> str:
    """Returns which keys that its algorithm reads may help a run that diverges."""
    read = read_by(config)
    help_by = [f"a smaller {key}" for key in (*RATES, "client.gain") if key in read]
    if "sketch.forget" in read and config.sketch.forget != "zero":
        help_by.append("sketch.forget=zero")
    return f"{' or '.join(help_by)} may help" if help_by else "another method may help"


def rates(config: ConfigDict) -> list[str]:
    """Returns the keys of the rates that the algorithm of a config reads."""
    return [key for key in RATES if key in read_by(config)]


def read_by(config: ConfigDict) -> set[str]:
    """Returns the keys that the arguments of a config's algorithm are made of."""
    return _read(catalog.method(config.algorithm))


def _read(method: catalog.Method) -> set[str]:
    """Returns the keys that an algorithm's arguments are made of."""
    said = {"server.optimizer"} if method.optimizer else set()
    return {key for name in _known(method) for key in ARGUMENTS[name].keys} - said


def _known(method: catalog.Method) -> list[str]:
    return [name for name in method.takes if name in ARGUMENTS]
