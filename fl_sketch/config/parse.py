"""From the values of a config to the parts that they name.

What a config may hold is checked here or by the parts themselves; every error is
one line that begins with the section of the config.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.algorithms import catalog
from fl_sketch.algorithms.fedsketch import QUERIES
from fl_sketch.core import validate
from fl_sketch.core.mappings import flat
from fl_sketch.data import batches as draws
from fl_sketch.data import datasets, partition, residency
from fl_sketch.sketch import FILLS

Numbers = Mapping[str, float | jax.Array]

# The continuous keys, which may also be traced, and what they may be. A lower end of
# None means greater than zero.
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


BANKS = ("devices", "host")  # where clients' states may be kept
NO_GRAPH = "none"  # the graph of a config with a server
BELOW = ("server.b1", "server.b2")  # at 1 a moment never hears of a gradient
NAMED = {  # keys that name something, by section
    "sketch": {
        "operator": catalog.OPERATORS,
        "layout": catalog.LAYOUTS,
        "query": QUERIES,
        "heavy_fill": ("", *FILLS),
    },
    "server": {"optimizer": catalog.OPTIMIZERS, "schedule": catalog.SCHEDULES},
    "compressor": {"name": catalog.COMPRESSORS},
}
WHOLE = 2**31  # whole numbers are int32 in programs


@contextlib.contextmanager
def section(name: str) -> Iterator[None]:
    """Says of an error in which section of the config it lies.

    Args:
      name: the section, as in "config.name: ...", with which the message of a
        ValueError or TypeError that is raised within will begin.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        start = "" if str(error).startswith("config.") else f"config.{name}: "
        msg = f"{start}{error}"
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(msg) from None


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


def check_counts(config: ConfigDict) -> None:
    """Checks what no constructor would of a config, before data are read.

    These are its whole numbers, and names that are looked up late.

    Args:
      config: any config, checked or not.

    Raises:
      ValueError: in one line that names the section.
    """
    catalog.method(config.algorithm)
    check_seed(config.seed)
    for name, value in flat(config.to_dict()).items():
        if isinstance(value, int) and not -WHOLE <= value < WHOLE:
            msg = f"Expected {name} in [-{WHOLE}, {WHOLE}), got {name}={value}."
            raise ValueError(msg)
    validate.at_least_one(
        rounds=config.rounds,
        eval_every=config.eval_every,
        checkpoint_every=config.checkpoint_every,
    )
    if config.checkpoint_keep not in (0, *range(2, 1000)):
        msg = (
            "Expected checkpoint_keep to be 0 (all) or at least 2, in case the newest "
            f"is damaged, got checkpoint_keep={config.checkpoint_keep}."
        )
        raise ValueError(msg)
    with section("data"):
        validate.at_least_one(per_client=config.data.per_client)
        if config.data.clients or config.data.partition != "natural":
            validate.at_least_one(clients=config.data.clients)
        validate.in_range(0, datasets.MOST_CLASSES, classes=config.data.classes)
    with section("client"):
        validate.at_least_one(steps=config.client.steps, batch=config.client.batch)
        validate.one_of(draws.KINDS, batches=config.client.batches)
    with section("server"):
        validate.in_range(0, 1, warmup=config.server.warmup)
    _check_messages(config)
    with section("compute"):
        validate.one_of(("keep", "recompute"), updates=config.compute.updates)
        validate.one_of(("auto", *residency.FORMS), data=config.compute.data)
        validate.one_of(("auto", *BANKS), clients=config.compute.clients)
        for name in ("devices", "chunk"):
            if config.compute[name] < 0:
                msg = f"Expected {name} >= 0, got {name}={config.compute[name]}."
                raise ValueError(msg)
        validate.at_least_one(model_devices=config.compute.model_devices)


def _check_messages(config: ConfigDict) -> None:
    """Checks what sketches and compressors would, also where an algorithm has none."""
    for name, tables in NAMED.items():
        with section(name):
            for key, table in tables.items():
                validate.one_of(tuple(table), **{key: config[name][key]})
    with section("sketch"):
        validate.at_least_one(rows=config.sketch.rows)
        catalog.require_compression(config.sketch.compression)
        validate.in_range(0, math.inf, window=config.sketch.window)
        validate.in_range(0, math.inf, heavy=config.sketch.heavy)
    with section("compressor"):
        validate.at_least_one(levels=config.compressor.levels)


def with_clients(config: ConfigDict, splits: datasets.Splits) -> ConfigDict:
    """Returns `config` with a client for each owner of the data.

    Args:
      config: the config, with partition="natural" and without a number of clients.
      splits: the data set.

    Raises:
      ValueError: in one line, for data that do not say whose they are.
    """
    own = config.copy_and_resolve_references()
    with section("data"):
        own.data.clients = len(np.unique(_required(splits.owners)))
    return own


BY_LABEL = (
    "dirichlet",
    "mixtures",
    "label_shards",
    "classes",
)  # partitions that read targets


def partition_of(
    config: ConfigDict,
    labels: np.ndarray,
    seed: int,
    owners: np.ndarray | None = None,
) -> partition.Partition:
    """Returns which client has which training examples.

    Args:
      config: the config; its section `data` says how they are dealt, and to how many.
      labels: the targets of all training examples, in their order.
      seed: the seed of what is dealt by chance.
      owners: the owner of each example, int32 [examples], for partition="natural";
        None: the data do not say it.

    Raises:
      ValueError: in one line, for what cannot be dealt in this way.
    """
    data, total = config.data, len(labels)
    count = data.clients
    partitions = {
        "iid": lambda: partition.iid(total, count, seed=seed),
        "dirichlet": lambda: partition.dirichlet(labels, count, data.alpha, seed=seed),
        "mixtures": lambda: partition.mixtures(labels, count, data.alpha, seed=seed),
        "label_shards": lambda: partition.label_shards(
            labels, count, data.per_client, seed=seed
        ),
        "classes": lambda: partition.classes_per_client(
            labels, count, data.per_client, seed=seed
        ),
        "power_law": lambda: partition.iid(
            total,
            count,
            sizes=partition.power_law_sizes(
                total, count, exponent=data.exponent, seed=seed
            ),
            seed=seed,
        ),
        "natural": lambda: _natural(owners, count),
    }
    with section("data"):
        validate.one_of(tuple(partitions), partition=data.partition)
        if data.partition in BY_LABEL and (labels.ndim, labels.dtype.kind) != (1, "i"):
            msg = (
                "Expected one class for each example to deal them by, got "
                f"partition={data.partition!r} and targets of {labels.dtype}"
                f"{list(labels.shape[1:]) or ''}: take iid, power_law or natural."
            )
            raise ValueError(msg)
        return partitions[data.partition]()


def _natural(owners: np.ndarray | None, clients: int) -> partition.Partition:
    shares = partition.natural(_required(owners))
    if shares.clients != clients:
        msg = (
            f"Expected clients={shares.clients}, the owners of the data, or 0, which "
            f"is as many as there are, got clients={clients}."
        )
        raise ValueError(msg)
    return shares


def _required(owners: np.ndarray | None) -> np.ndarray:
    """Returns the owners of the examples; raises unless the data say them."""
    if owners is None:
        msg = (
            "Expected data with owners for partition='natural', such as shakespeare, "
            "or an npz file with an array of owners."
        )
        raise ValueError(msg)
    return owners


def fetch_of(config: ConfigDict):
    """Returns what gives a client its batches, as `engine.make_round` wants it.

    Args:
      config: the config; its section `client` says how many batches there are, of
        how many examples each, and how they are drawn (`draws.fetching`).
    """
    own = config.client
    return draws.fetching(own.batches, steps=own.steps, batch=own.batch)


def data_form_of(config: ConfigDict, examples: Any, mesh: jax.sharding.Mesh) -> str:
    """Returns the form in which to keep the data, one of `residency.FORMS`.

    Args:
      config: the config; its `compute.data` is one of them, or "auto": by size.
      examples: the training data, a tree of arrays.
      mesh: the devices.

    Raises:
      ValueError: in one line, where the data are to be streamed, or can only be, and
        the config's batches cannot.
    """
    wanted = config.compute.data
    if config.network.graph != NO_GRAPH and wanted == "auto":
        return "resident"  # nodes draw their batches themselves
    with section("compute"):
        return residency.form(wanted, examples, mesh, config.client.batches)


def mesh_of(config: ConfigDict) -> jax.sharding.Mesh:
    """Returns the devices that share the clients of a round, a model on so many each.

    Args:
      config: the config; its `compute.devices` says how many, the first ones; 0: all;
        its `compute.model_devices` how many of them hold a model together.

    Raises:
      ValueError: in one line, if there are fewer, or some are left over.
    """
    devices, available = config.compute.devices, len(jax.devices())
    with section("compute"):
        validate.at_most(available, "the devices there are", devices=devices)
    some, model = jax.devices()[: devices or available], config.compute.model_devices
    require_rows(len(some), model)
    return engine.mesh_over(some, model)


def require_rows(devices: int, model: int) -> None:
    """Raises a ValueError unless models over so many devices can be, and use all.

    Args:
      devices: the number of devices.
      model: the number of them that hold a client's model together.
    """
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


def chunk_of(config: ConfigDict, mesh: jax.sharding.Mesh, places: int) -> int:
    """Returns how many clients of a round a device, or a row, works on at a time.

    Args:
      config: the config; its `compute.chunk` says it; 0: by platform.
      mesh: the devices.
      places: the number of places of a cohort.
    """
    return config.compute.chunk or engine.default_chunk(mesh, places)
