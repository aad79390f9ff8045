"""Metrics of single clients: how good a model is for each of them.

Means over all examples hide the clients for which a model is bad. Here every client
counts once: in the mean over clients, and in the mean over the worst tenth of them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import data
from fl_sketch.core.constants import jitted
from fl_sketch.core.protocols import Tree
from fl_sketch.data.partition import Partition
from fl_sketch.models.metrics import METRICS

TOGETHER = 2048  # examples that are measured in one call
Found = dict[str, np.ndarray]  # results by name, and then by client


def by_client(
    measure: Callable[[Tree, Any, jax.Array], Mapping[str, jax.Array]],
    examples: Any,
    partition: Partition,
) -> Callable[[Tree], Found]:
    """Returns `(params) -> results` of each client; NaN of one without examples.

    Args:
      measure: `(params, examples, weights) -> {name: number}` of one client, whose
        examples have weight 1, and what fills up a batch weight 0.
      examples: a tree of arrays on the host, of which each client has its part.
    """
    together = jitted(jax.vmap(measure, in_axes=(None, 0, 0)))

    def measured(params: Tree) -> Found:
        found: Found = {}
        for clients, places, weights in blocks(partition):
            own = jax.tree.map(lambda leaf: np.asarray(leaf)[places], examples)  # noqa: B023
            for name, values in jax.device_get(together(params, own, weights)).items():
                column = found.setdefault(name, np.full(partition.clients, np.nan))
                column[clients] = values
        return found

    return measured


def per_client(
    metric: Callable[[Tree, Any], Mapping[str, jax.Array]], clients: data.Clients
) -> Callable[[Tree], dict[str, float]]:
    """Returns `(params) -> columns`, the `look` of a simulation; see `summed_up`.

    Args:
      metric: `(params, example) -> {name: number}`, of which each client has the mean
        over its examples.
      clients: the clients of the run, with other examples of theirs or the same.
    """

    def of_client(params, examples, weights):
        each = jax.vmap(lambda one: metric(params, one))(examples)
        return {
            name: jnp.sum(jnp.where(weights > 0, value, 0)) / weights.sum()
            for name, value in each.items()
        }

    measured = by_client(of_client, *clients)
    return lambda params: summed_up(measured(params), clients.sizes > 0)


def blocks(
    partition: Partition,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields clients, the places of their examples, and weights of 1 or 0 of places.

    Clients of one block have about as many examples, so that there are few shapes.
    """
    sizes = partition.sizes
    widths = 1 << np.ceil(np.log2(np.maximum(sizes, 1))).astype(int)
    for width in np.unique(widths[sizes > 0]):
        alike = np.flatnonzero((widths == width) & (sizes > 0))
        count = min(len(alike), max(1, TOGETHER // width))
        for start in range(0, len(alike), count):
            # The last block repeats its first clients, which changes nothing.
            clients = np.resize(alike[start : start + count], count)
            offset = np.arange(width)
            there = offset < sizes[clients, None]
            at = partition.starts[clients, None] + np.where(there, offset, 0)
            yield clients, partition.indices[at], there.astype(np.float32)


def summed_up(found: Found, seen: np.ndarray) -> dict[str, float]:
    """Returns the mean, the worst tenth and the median over clients of each result.

    A client does not count where its metric is NaN, such as the area under a curve of
    one class; a loss counts always.

    >>> found, seen = {"accuracy": np.array([0.5, 1.0, np.nan, 0.0])}, np.ones(4, bool)
    >>> summed_up(found, seen)["clients_accuracy"]
    0.5

    Args:
      seen: the clients that were measured, bool [clients].
    """
    row = {}
    for name, values in found.items():
        counts = seen if name == "loss" else seen & ~np.isnan(values)
        all_ = np.nan_to_num(values[counts], nan=np.inf, posinf=np.inf, neginf=-np.inf)
        higher = name in METRICS and METRICS[name].higher
        ranked = np.sort(all_) if higher else -np.sort(-all_)
        worst = ranked[: max(1, round(0.1 * len(ranked)))]
        for which, some in (("", all_), ("_worst_tenth", worst)):
            row[f"clients_{name}{which}"] = float(some.mean()) if some.size else np.nan
        row[f"clients_{name}_median"] = float(np.median(all_)) if all_.size else np.nan
    return row
