"""What the keys of a config may say, and the parts that single keys name.

A value that a constructor checks is checked there, under the name of its section. Here
are the others. Every error is one line that begins with the section of the config.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fl_sketch import data, engine
from fl_sketch.algorithms import catalog
from fl_sketch.algorithms.fedsketch import QUERIES
from fl_sketch.core import validate
from fl_sketch.core.mappings import flat
from fl_sketch.data import batches as client_batches
from fl_sketch.data import datasets, partition, residency
from fl_sketch.engine.host_states import PLACES
from fl_sketch.privacy import accounting
from fl_sketch.sketch import FILLS
from fl_sketch.transforms import by_name

Numbers = Mapping[str, float | jax.Array]
NO_GRAPH = "none"  # the graph of a config with a server
WHOLE = 2**31  # whole numbers are int32 in programs

# The continuous keys, which may also be traced, and their ranges. A lower end of None
# means greater than zero.
CONTINUOUS: dict[str, tuple[float | None, float]] = {
    "client.rate": (None, math.inf),
    "client.proximal": (0, math.inf),
    "client.clip": (0, math.inf),
    "client.gain": (0, math.inf),
    "client.weight_decay": (0, math.inf),
    "server.rate": (None, math.inf),
    "server.floor": (0, math.inf),
    "server.b1": (0, 1),
    "server.b2": (0, 1),
    "server.eps": (0, math.inf),
    "model.label_smoothing": (0, 1),
    "model.weight_decay": (0, math.inf),
    "client.decay": (None, 1),
    "privacy.threshold": (None, math.inf),
}
BELOW = ("server.b1", "server.b2")  # at 1 a moment never changes

# Keys that name something, and what they may name.
NAMED: dict[str, Any] = {
    "client.batches": client_batches.KINDS,
    "sketch.operator": catalog.OPERATORS,
    "sketch.layout": catalog.LAYOUTS,
    "sketch.query": QUERIES,
    "sketch.heavy_fill": ("", *FILLS),
    "server.optimizer": catalog.OPTIMIZERS,
    "server.schedule": catalog.SCHEDULES,
    "compressor.name": catalog.COMPRESSORS,
    "compute.updates": ("keep", "recompute"),
    "compute.data": ("auto", *residency.FORMS),
    "compute.clients": ("auto", *PLACES),
    "privacy.bound": ("none", "clip", "normalise", "adaptive"),
    "privacy.noise": ("central", "distributed"),
    "privacy.form": ("message", "update"),
    "privacy.relation": accounting.RELATIONS,
    "privacy.accountant": ("auto", *accounting.ACCOUNTANTS),
    "privacy.randomness": ("system", "seed"),
}
# Keys of numbers, and the least and the largest that they may be.
RANGES: dict[str, tuple[float, float]] = {
    "data.classes": (0, datasets.MOST_CLASSES),
    "server.warmup": (0, 1),
    "sketch.window": (0, math.inf),
    "sketch.heavy": (0, math.inf),
    "compute.devices": (0, WHOLE),
    "compute.chunk": (0, WHOLE),
    "data.partition_seed": (-1, WHOLE - 1),
    "privacy.planned_rounds": (0, math.inf),
    "privacy.watch_noise": (0, math.inf),
    "privacy.quantile_rate": (0, math.inf),
    "privacy.smallest_cohort": (0, math.inf),
    "privacy.noise_multiplier": (0, 1e6),
    "privacy.target_epsilon": (0, 500),
}
COUNTS = (
    "rounds",
    "eval_every",
    "checkpoint_every",
    "data.per_client",
    "client.steps",
    "client.batch",
    "sketch.rows",
    "compressor.levels",
    "compute.model_devices",
)  # at least one each
LEAST = 1e-3  # with less noise than this, or such a promise, numbers overflow


@contextlib.contextmanager
def section(name: str) -> Iterator[None]:
    """Begins the message of a ValueError or TypeError raised within with the section.

    An empty `name` stands for the keys without a section.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        start = f"config.{name}: " if name else ""
        start = "" if str(error).startswith("config.") else start
        kind = TypeError if isinstance(error, TypeError) else ValueError
        msg = f"{start}{error}"
        raise kind(msg) from None


def check(config: ConfigDict) -> None:
    """Raises in one line for values that no constructor checks."""
    catalog.method(config.algorithm)
    check_seed(config.seed)
    numbers_of(config)
    for key, value in flat(config).items():
        place, _, name = key.rpartition(".")
        if isinstance(value, int) and not -WHOLE <= value < WHOLE:
            msg = f"Expected {key} in [-{WHOLE}, {WHOLE}), got {key}={value}."
            raise ValueError(msg)
        with section(place):
            if key in COUNTS:
                validate.at_least_one(**{name: value})
            if key in NAMED:
                validate.one_of(tuple(NAMED[key]), **{name: str(value)})
            if key in RANGES:
                validate.in_range(*RANGES[key], **{name: value})
    if config.checkpoint_keep not in (0, *range(2, 1000)):
        msg = (
            "Expected checkpoint_keep to be 0 (all) or at least 2, in case the newest "
            f"is damaged, got checkpoint_keep={config.checkpoint_keep}."
        )
        raise ValueError(msg)
    with section("client"):
        by_name.optimizer(config.client.optimizer)
    with section("data"):
        validate.below_one(held_out=config.data.held_out)
        if config.data.clients or config.data.partition != "natural":
            validate.at_least_one(clients=config.data.clients)
    with section("sketch"):
        catalog.require_compression(config.sketch.compression)
    _check_looks(config)


def _check_looks(config: ConfigDict) -> None:
    """Raises where single clients are to be measured on nothing, or between rows."""
    for key in ("clients_every", "personal_steps"):
        if config[key] < 0 or (config[key] and not config.data.held_out):
            msg = f"Expected data.held_out > 0 with {key} > 0, or {key}=0, got "
            raise ValueError(msg + f"{key}={config[key]}.")
    if config.clients_every % config.eval_every:
        msg = f"Expected clients_every to be a multiple of {config.eval_every}, which "
        raise ValueError(msg + f"is eval_every, got {config.clients_every}.")


def numbers_of(config: ConfigDict) -> Numbers:
    """Returns the continuous keys of `config` and their values.

    Raises:
      ValueError: for a value that its key may not have.
    """
    values = flat(config)
    numbers = {name: values[name] for name in CONTINUOUS}
    for name, value in numbers.items():
        check_number(name, value)
    return numbers


def check_number(name: str, value: float) -> None:
    """Raises a ValueError unless the continuous key `name` may have this `value`."""
    low, high = CONTINUOUS[name]
    inside = value > 0 if low is None else value >= low
    below = value < high if name in BELOW else value <= high
    if not (inside and below and math.isfinite(value)):
        allowed = f"{name} > 0" if low is None else f"{name} >= {low}"
        sign = "<" if name in BELOW else "<="
        upper = " and finite" if high == math.inf else f" and {sign} {high}"
        msg = f"Expected {allowed}{upper}, got {name}={value}."
        raise ValueError(msg)


def check_seed(seed: int) -> None:
    """Raises a ValueError for a `seed` below 0 or from `WHOLE` on."""
    if not 0 <= seed < WHOLE:
        msg = f"Expected 0 <= seed < {WHOLE}, got seed={seed}."
        raise ValueError(msg)


def with_clients(config: ConfigDict, splits: datasets.Splits) -> ConfigDict:
    """Returns `config` with a client for each owner of the data."""
    copy = config.copy_and_resolve_references()
    with section("data"):
        copy.data.clients = len(np.unique(_required(splits.owners)))
    return copy


BY_LABEL = ("dirichlet", "mixtures", "label_shards", "classes")  # read the targets


def partition_of(
    config: ConfigDict,
    labels: np.ndarray,
    seed: int,
    owners: np.ndarray | None = None,
) -> partition.Partition:
    """Returns which client has which training examples.

    Args:
      labels: the targets of all training examples, in their order.
      owners: the owner of each example; None: the data do not say it.

    Raises:
      ValueError: in one line, for what cannot be dealt in this way.
    """
    own, total = config.data, len(labels)
    count, rare = own.clients, own.per_client
    sizes = {"exponent": own.exponent, "seed": seed}
    ways = {
        "iid": lambda: data.iid(total, count, seed=seed),
        "dirichlet": lambda: data.dirichlet(labels, count, own.alpha, seed=seed),
        "mixtures": lambda: data.mixtures(labels, count, own.alpha, seed=seed),
        "label_shards": lambda: data.label_shards(labels, count, rare, seed=seed),
        "classes": lambda: data.classes_per_client(labels, count, rare, seed=seed),
        "power_law": lambda: data.iid(
            total, count, sizes=data.power_law_sizes(total, count, **sizes), seed=seed
        ),
        "natural": lambda: _natural(owners, count),
    }
    with section("data"):
        validate.one_of(tuple(ways), partition=own.partition)
        if own.partition in BY_LABEL and (labels.ndim, labels.dtype.kind) != (1, "i"):
            msg = (
                "Expected one class for each example to deal them by, got "
                f"partition={own.partition!r} and targets of {labels.dtype}"
                f"{list(labels.shape[1:]) or ''}: take iid, power_law or natural."
            )
            raise ValueError(msg)
        return ways[own.partition]()


def _natural(owners: np.ndarray | None, clients: int) -> partition.Partition:
    shares = data.natural(_required(owners))
    if shares.clients != clients:
        msg = (
            f"Expected clients={shares.clients}, the owners of the data, or 0, which "
            f"is as many as there are, got clients={clients}."
        )
        raise ValueError(msg)
    return shares


def _required(owners: np.ndarray | None) -> np.ndarray:
    if owners is None:
        msg = (
            "Expected data with owners for partition='natural', such as shakespeare, "
            "or an npz file with an array of owners."
        )
        raise ValueError(msg)
    return owners


def fetch_of(config: ConfigDict) -> Callable[..., Any]:
    """Returns what gives a client its batches, as `engine.make_round` takes it."""
    own = config.client
    return client_batches.fetching(own.batches, steps=own.steps, batch=own.batch)


def mesh_of(config: ConfigDict) -> jax.sharding.Mesh:
    """Returns the devices that share the clients of a round.

    Raises:
      ValueError: in one line, if there are fewer than asked for, or some are left over.
    """
    devices, available = config.compute.devices, len(jax.devices())
    with section("compute"):
        validate.at_most(available, "the devices there are", devices=devices)
    some, model = jax.devices()[: devices or available], config.compute.model_devices
    require_rows(len(some), model)
    return engine.mesh_over(some, model)


def require_rows(devices: int, model: int) -> None:
    """Raises a ValueError unless models over `model` each can share `devices`."""
    validate.at_least_one(model_devices=model)
    if model > 1 and jax.process_count() > 1:
        msg = (
            "config.compute: Expected model_devices=1 in a run of several processes, "
            f"got model_devices={model}."
        )
        raise ValueError(msg)
    if devices % model:
        msg = (
            f"config.compute: Expected a divisor of {devices}, the number of devices, "
            f"got model_devices={model}."
        )
        raise ValueError(msg)
