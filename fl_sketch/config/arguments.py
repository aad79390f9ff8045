"""From the keys of a config to the arguments of algorithms, by their names.

Only arguments that an algorithm takes are made. Which keys change nothing for it
follows from the same tables.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import optax
from ml_collections import ConfigDict

from fl_sketch.algorithms import catalog
from fl_sketch.config.parse import section
from fl_sketch.core import pretrained, validate
from fl_sketch.core.mappings import flat
from fl_sketch.core.protocols import Compressor, Sketch
from fl_sketch.engine.experiment import Hyperparameters
from fl_sketch.privacy import lattice
from fl_sketch.transforms import by_name

DIRECT_KEYS = {  # arguments that are a key as it is
    "client_rate": "client.rate",
    "client_clip": "client.clip",
    "proximal": "client.proximal",
    "decay": "client.decay",
    "momentum": "server.b1",
    "b1": "server.b1",
    "b2": "server.b2",
    "eps": "server.eps",
    "query": "sketch.query",
    "heavy": "sketch.heavy",
    "values": "sketch.heavy_values",
    "fill": "sketch.heavy_fill",
    "forget": "sketch.forget",
    "masking": "sketch.masking",
    "levels": "compressor.levels",
    "probability": "compressor.probability",
    "threshold": "privacy.threshold",
}
_RATE = ("server.rate", "server.schedule", "server.floor")
_SHORT = ("compressor.compression", "compressor.levels")
_SKETCH = ("operator", "compression", "size", "rows", "layout", "stored")
MADE_OF = {  # the others, with the keys that only arguments read
    "client_optimizer": ("client.optimizer", "client.weight_decay"),
    "gain": ("client.rate", "client.gain"),
    "steps": ("client.steps",),
    "server": (*_RATE, "server.optimizer", "server.b1", "server.b2", "server.eps"),
    "server_rate": _RATE,
    "warmup": ("server.warmup",),
    "sketch": tuple(f"sketch.{key}" for key in _SKETCH),
    "compressor": ("compressor.name", *_SHORT),
    "cocktail": _SHORT,
    "cohort": (),
    "noise_multiplier": (),
}
KEYS: Mapping[str, tuple[str, ...]] = {
    n: (k,) for n, k in DIRECT_KEYS.items()
} | MADE_OF

# Keys, and with which values of another key they are read; none: with any but empty.
ASKED_FOR: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "data.alpha": ("data.partition", ("dirichlet", "capped_dirichlet", "mixtures")),
    "data.per_client": ("data.partition", ("label_shards", "classes")),
    "data.exponent": ("data.partition", ("power_law",)),
    "model.fresh": ("model.init_from", ()),
    "server.floor": ("server.schedule", ("cosine",)),
    "privacy.smallest_cohort": ("privacy.noise", lattice.KINDS),
    "privacy.quantile": ("privacy.bound", ("adaptive",)),
    "privacy.quantile_rate": ("privacy.bound", ("adaptive",)),
    "privacy.quantile_noise": ("privacy.bound", ("adaptive",)),
}


def taken(
    method: catalog.Method,
    config: ConfigDict,
    d: int,
    hyperparameters: Hyperparameters,
    noise_multiplier: float = 0.0,
) -> dict[str, Any]:
    """Returns the arguments that an algorithm takes, for a model of d parameters.

    The noise multiplier is for algorithms that add noise by themselves.
    """
    for name in method.requires:
        if name not in KEYS:
            msg = (
                f"Expected the arguments of algorithm={method.name} to have defaults "
                f"or to be among {', '.join(KEYS)}, got {name!r}."
            )
            raise ValueError(msg + validate.nearest(name, tuple(KEYS)))
    values = {**flat(config), **hyperparameters}

    def client_optimizer() -> by_name.Optimizer:
        with section("client"):
            make = by_name.optimizer(values["client.optimizer"])
            return by_name.decoupled(make, values["client.weight_decay"])

    def server_rate() -> optax.ScalarOrSchedule:
        with section("server"):
            return catalog.build_schedule(
                values["server.schedule"],
                values["server.rate"],
                floor=values["server.floor"],
                rounds=config.rounds,
            )

    def server() -> optax.GradientTransformation:
        name = method.optimizer or values["server.optimizer"]
        moments = {key: values[f"server.{key}"] for key in ("b1", "b2", "eps")}
        with section("server"):
            return catalog.build_optimizer(name, server_rate(), **moments)

    def sketch() -> Sketch:
        own = {key: config.sketch[key] for key in _SKETCH}
        with section("sketch"):
            return catalog.build_sketch(d=d, parts=config.compute.model_devices, **own)

    def compressor(name: str) -> Compressor:
        own = {key: config.compressor[key] for key in ("compression", "levels")}
        with section("compressor"):
            return catalog.build_compressor(name, d, **own)

    makers: dict[str, Callable[[], Any]] = {
        "client_optimizer": client_optimizer,
        "gain": lambda: (
            values["client.gain"] / (values["client.rate"] * config.client.steps)
        ),
        "steps": lambda: None if config.client.epochs else config.client.steps,
        "server": server,
        "server_rate": server_rate,
        "warmup": lambda: max(1, round(config.server.warmup * config.rounds)),
        "sketch": sketch,
        "compressor": lambda: compressor(config.compressor.name),
        "cocktail": lambda: compressor("cocktail"),
        "cohort": lambda: config.cohort.size,
        "noise_multiplier": lambda: noise_multiplier,
    }
    return {
        name: values[DIRECT_KEYS[name]] if name in DIRECT_KEYS else makers[name]()
        for name in method.takes
        if name in KEYS
    }


def read_by(method: catalog.Method) -> set[str]:
    """Returns the keys of which an algorithm's arguments are made."""
    said = {"server.optimizer"} if method.optimizer else set()
    return {key for name in method.takes for key in KEYS.get(name, ())} - said


def unread(config: ConfigDict, default: ConfigDict) -> Iterator[str]:
    """Yields `key=value` of what was changed from `default` and is not read.

    These are keys of other algorithms' arguments, and keys that are read only with
    another value of a second one (`ASKED_FOR`).
    """
    before, now = flat(default), flat(config)
    method, model = catalog.method(config.algorithm), config.model.name
    idle = {key for keys in KEYS.values() for key in keys} - read_by(method)
    if config.privacy.bound != "none":
        idle.discard("privacy.threshold")
    if not method.one_batch:
        idle.discard("client.steps")
    if config.client.epochs:
        idle |= {"client.steps", "client.batches"}
    if pretrained.named(model):  # whose tokens are its own
        now["model.init_from"] = now["model.init_from"] or model
        idle.add("data.vocabulary")
    for key, (other, values) in ASKED_FOR.items():
        if not (now[other] in values if values else now[other]):
            idle.add(key)
    for key in now:
        if key in idle and now[key] != before[key]:
            yield f"{key}={now[key]}"


def hints(config: ConfigDict, default: ConfigDict) -> Iterator[str]:
    """Yields a line on clients that take no steps, and on a server that hardly moves.

    The server's rate of the config that it was changed from, `default`, suits adaptive
    servers.
    """
    method, rate = catalog.method(config.algorithm), config.server.rate
    if method.one_batch:
        yield (
            f"clients of {config.algorithm} send one gradient a round, of client.batch="
            f"{config.client.batch} examples, and take no local steps"
        )
    takes = {*method.takes}
    averages = {"client_rate", "server_rate"} <= takes and "b2" not in takes
    if averages and not method.one_batch and rate == default.server.rate:
        yield (
            f"with server.rate={rate:g}, {config.algorithm} moves the model by that "
            "share of the clients' mean update; server.rate=1.0 takes the whole update"
        )


def by_length(config: ConfigDict) -> Iterator[str]:
    """Yields `key=value` of what `config` reads that depends on how long it runs."""
    read, server = read_by(catalog.method(config.algorithm)), config.server
    if "server.schedule" in read and server.schedule != "constant":
        yield f"server.schedule={server.schedule}"
    if "server.warmup" in read:
        yield f"server.warmup={server.warmup}"


def advice(config: ConfigDict) -> str:
    """Returns which keys that its algorithm reads may help a run that diverges."""
    read, smaller = read_by(catalog.method(config.algorithm)), "a smaller "
    rates = ("client.rate", "server.rate", "client.gain")
    ways = [smaller + key for key in rates if key in read]
    if "sketch.forget" in read and config.sketch.forget != "zero":
        ways.append("sketch.forget=zero")
    return f"{' or '.join(ways) or 'another method'} may help, or smaller inputs"
