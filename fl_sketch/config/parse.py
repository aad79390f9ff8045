"""The values that keys of a config may have, and the parts that single keys name.

A value that a constructor checks is checked there, under the name of its section; the
others are checked here. Every error is one line that begins with the section.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fl_sketch import data, engine
from fl_sketch.algorithms import catalog
from fl_sketch.algorithms.fedsketch import QUERIES
from fl_sketch.core import validate
from fl_sketch.core.mappings import flat
from fl_sketch.data import batches, class_subset, datasets, partition, residency
from fl_sketch.models.losses import KINDS, TYPES
from fl_sketch.privacy import accounting, lattice
from fl_sketch.sketch import FILLS
from fl_sketch.transforms import by_name

WHOLE = 2**31  # whole numbers are int32 in programs

RANGES: dict[str, Callable[[float], bool]] = {
    "> 0": lambda value: value > 0,
    ">= 0": lambda value: value >= 0,
    "> 0 and <= 1": lambda value: 0 < value <= 1,
    ">= 0 and <= 1": lambda value: 0 <= value <= 1,
    ">= 0 and < 1": lambda value: 0 <= value < 1,
}
# The continuous keys, which may also be traced, and their ranges.
CONTINUOUS = {
    "client.rate": "> 0",
    "client.proximal": ">= 0",
    "client.clip": ">= 0",
    "client.gain": ">= 0",
    "client.weight_decay": ">= 0",
    "server.rate": "> 0",
    "server.floor": ">= 0",
    "server.b1": ">= 0 and < 1",  # at 1 a moment never changes
    "server.b2": ">= 0 and < 1",
    "server.eps": ">= 0",
    "model.label_smoothing": ">= 0 and <= 1",
    "model.weight_decay": ">= 0",
    "client.decay": "> 0 and <= 1",
    "privacy.threshold": "> 0",
}
BY_LABEL = (  # partitions
    "dirichlet", "capped_dirichlet", "mixtures", "label_shards", "classes",
)  # fmt: skip


def _one_of(*names: str) -> Callable[..., None]:
    return functools.partial(validate.one_of, names)


def _within(low: float, high: float = math.inf) -> Callable[..., None]:
    return functools.partial(validate.in_range, low, high)


# The other keys that no constructor checks: `(**{name: value})` raises an error.
CHECKS: dict[str, Callable[..., Any]] = {
    "rounds": validate.at_least_one,
    "eval_every": validate.at_least_one,
    "checkpoint_every": validate.at_least_one,
    "data.classes": _within(0, datasets.MOST_CLASSES),
    "data.part": class_subset.parsed,
    "data.per_client": validate.at_least_one,
    "data.partition_seed": _within(-1, WHOLE - 1),
    "data.held_out": validate.below_one,
    "model.loss": _one_of(*KINDS),
    "cohort.weighting": _one_of("equal", "examples"),
    "client.optimizer": lambda optimizer: by_name.optimizer(optimizer),
    "client.steps": validate.at_least_one,
    "client.epochs": _within(0, WHOLE),
    "client.batch": _within(0, WHOLE),
    "client.batches": _one_of(*batches.KINDS),
    "server.optimizer": _one_of(*catalog.OPTIMIZERS),
    "server.schedule": _one_of(*catalog.SCHEDULES),
    "server.warmup": _within(0, 1),
    "sketch.operator": _one_of(*catalog.OPERATORS),
    "sketch.compression": catalog.require_compression,
    "sketch.rows": validate.at_least_one,
    "sketch.layout": _one_of(*catalog.LAYOUTS),
    "sketch.query": _one_of(*QUERIES),
    "sketch.heavy": _within(0),
    "sketch.heavy_fill": _one_of("", *FILLS),
    "compressor.name": _one_of(*catalog.COMPRESSORS),
    "compressor.levels": validate.at_least_one,
    "privacy.randomness": _one_of("system", "seed"),
    "privacy.bound": _one_of("none", "clip", "normalise", "adaptive"),
    "privacy.target_epsilon": _within(0, 500),
    "privacy.relation": _one_of(*accounting.RELATIONS),
    "privacy.accountant": _one_of("auto", *accounting.ACCOUNTANTS),
    "privacy.noise": _one_of("central", *lattice.KINDS),
    "privacy.bits": _within(0, lattice.LONGEST),
    "privacy.smallest_cohort": _within(0),
    "privacy.quantile_rate": _within(0),
    "compute.devices": _within(0, WHOLE),
    "compute.model_devices": validate.at_least_one,
    "compute.dtype": _one_of(*TYPES),
    "compute.chunk": _within(0, WHOLE),
    "compute.data": _one_of("auto", *residency.PLACEMENTS),
}


@contextlib.contextmanager
def section(name: str) -> Iterator[None]:
    """Lets the message of a ValueError or TypeError within begin with the section.

    An empty `name` means the keys without a section.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        start = f"config.{name}: " if name else ""
        start = "" if str(error).startswith("config.") else start
        kind = TypeError if isinstance(error, TypeError) else ValueError
        msg = f"{start}{error}"
        raise kind(msg) from None


def check(config: ConfigDict) -> dict[str, float]:
    """Raises in one line for values that no constructor checks.

    Returns the continuous keys.
    """
    catalog.method(config.algorithm)
    check_seed(config.seed)
    hyperparameters = hyperparameters_of(config)
    for key, value in flat(config).items():
        if isinstance(value, int) and not -WHOLE <= value < WHOLE:
            msg = f"Expected {key} in [-{WHOLE}, {WHOLE}), got {key}={value}."
            raise ValueError(msg)
        place, _, name = key.rpartition(".")
        with section(place):
            if key in CHECKS:
                CHECKS[key](**{name: value})
    if not (config.client.batch or config.client.epochs):
        msg = "config.client: Expected batch >= 1, or epochs >= 1 with batch=0 (all "
        raise ValueError(msg + "examples at once), got batch=0 and epochs=0.")
    with section("data"):
        if config.data.clients or config.data.partition != "natural":
            validate.at_least_one(clients=config.data.clients)
    if config.checkpoint_keep not in (0, *range(2, 1000)):
        msg = (
            "Expected checkpoint_keep to be 0 (all) or >= 2, in case the newest is "
            f"damaged, got checkpoint_keep={config.checkpoint_keep}."
        )
        raise ValueError(msg)
    return hyperparameters


def hyperparameters_of(config: ConfigDict) -> dict[str, float]:
    """Returns the continuous keys of a config, checked."""
    values = flat(config)
    hyperparameters = {name: values[name] for name in CONTINUOUS}
    for name, value in hyperparameters.items():
        check_number(name, value)
    return hyperparameters


def check_number(name: str, value: float) -> None:
    """Raises a ValueError unless a continuous key may have this value."""
    if not (RANGES[CONTINUOUS[name]](value) and math.isfinite(value)):
        msg = f"Expected {name} {CONTINUOUS[name]} and finite, got {name}={value}."
        raise ValueError(msg)


def check_seed(seed: int) -> None:
    """Raises a ValueError for a seed that is negative or has more than 31 bits."""
    if not 0 <= seed < WHOLE:
        msg = f"Expected 0 <= seed < {WHOLE}, got seed={seed}."
        raise ValueError(msg)


def with_clients(config: ConfigDict, splits: datasets.Splits) -> ConfigDict:
    """Returns a config that says how many clients there are.

    Where each owner of data is one, it may not say another number.
    """
    if config.data.partition != "natural":
        return config
    with section("data"):
        if splits.owners is None:
            msg = (
                "Expected data with owners with partition='natural' (shakespeare, or "
                "an npz file with an array `owners`), got data without owners."
            )
            raise ValueError(msg)
        found, clients = len(np.unique(splits.owners)), config.data.clients
        if clients not in (0, found):
            msg = (
                f"Expected clients={found} (the owners of the data), or without "
                f"privacy clients=0 (all), got clients={clients}."
            )
            raise ValueError(msg)
    copy = config.copy_and_resolve_references()
    copy.data.clients = found
    return copy


def partition_of(
    keys: ConfigDict,
    labels: np.ndarray,
    seed: int,
    owners: Any = None,
) -> partition.Partition:
    """Returns which client has which training examples, of these labels and owners.

    `keys` is the data section.
    """
    total, count = len(labels), keys.clients
    alpha, each = keys.alpha, keys.per_client
    sizes = {"exponent": keys.exponent, "seed": seed}
    ways = {
        "iid": lambda: data.iid(total, count, seed=seed),
        "dirichlet": lambda: data.dirichlet(labels, count, alpha, seed=seed),
        "capped_dirichlet": lambda: data.capped_dirichlet(
            labels, count, alpha, seed=seed
        ),
        "mixtures": lambda: data.mixtures(labels, count, alpha, seed=seed),
        "label_shards": lambda: data.label_shards(labels, count, each, seed=seed),
        "classes": lambda: data.classes_per_client(labels, count, each, seed=seed),
        "power_law": lambda: data.iid(
            total, count, sizes=data.power_law_sizes(total, count, **sizes), seed=seed
        ),
        "natural": lambda: data.natural(owners),
    }
    with section("data"):
        validate.one_of(tuple(ways), partition=keys.partition)
        if keys.partition in BY_LABEL and (labels.ndim, labels.dtype.kind) != (1, "i"):
            msg = (
                f"Expected one class per example with partition={keys.partition!r}, "
                f"got targets of {labels.dtype}{list(labels.shape[1:]) or ''}: use "
                "iid, power_law or natural."
            )
            raise ValueError(msg)
        return ways[keys.partition]()


def mesh_of(compute: ConfigDict) -> jax.sharding.Mesh:
    """Returns the devices of a section, which share the clients of a round."""
    devices, available = compute.devices, len(jax.devices())
    model, several = compute.model_devices, jax.process_count() > 1
    with section("compute"):
        validate.at_most(available, "the available devices", devices=devices)
        some = jax.devices()[: devices or available]
        if (several and model > 1) or len(some) % model:
            allowed = "=1 with several processes"
            if not several:
                allowed = f" to divide {len(some)} (devices)"
            msg = f"Expected model_devices{allowed}, got model_devices={model}."
            raise ValueError(msg)
    return engine.mesh_over(some, model)
