"""Metrics of single clients: how good a model is for each of them.

Means over all examples hide the clients for which a model is bad. Here every client
counts once: in the mean over clients, and in the mean over the worst tenth of them.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import data, models
from fl_sketch.core.constants import jitted
from fl_sketch.core.protocols import Tree
from fl_sketch.data.examples import Examples
from fl_sketch.data.partition import Partition
from fl_sketch.models.metrics import METRICS

TOGETHER = 2048  # examples that are measured in one call
TENTH = 0.1
Found = dict[str, np.ndarray]  # results by name, and then by client
PerExample = Callable[[Tree, Any], Mapping[str, jax.Array]]


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredClients:
    """Clients that are measured one by one, each on its own examples.

    Attributes:
      loss: the loss, of inputs as the data set has them.
      examples: the training set on the host.
      kept: the part of it that each client trains on.
      held: the part of it that each client held out.
    """

    loss: models.Loss
    examples: Examples
    kept: Partition
    held: Partition

    def look(self, params: Tree) -> Found:
        """Returns loss and metrics of each client; NaN of one that held nothing out."""

        def measured(clients, places, weights):
            del clients
            tests = Examples(*(np.asarray(leaf)[places] for leaf in self.examples))
            return self._measured(params, tests, weights)

        return _by_client(self.held, measured)

    @functools.cached_property
    def _measured(self) -> Callable[..., Any]:
        """`(params, tests, weights) -> results`, jitted."""

        def of_client(params, tests, weights):
            return self.loss.report(self.loss.metrics(params, *tests, weights))

        return jitted(jax.vmap(of_client, in_axes=(None, 0, 0)))


def columns_of(
    per_client: PerExample, clients: data.Clients
) -> Callable[[Tree], dict[str, float]]:
    """Returns `(params) -> columns` with what clients measure; see `summed_up`.

    Args:
      per_client: `(params, example) -> {name: number}`, of which each client has the
        mean over its examples.
    """

    @jitted
    def measured(params, examples, weights):
        def of_client(examples, weights):
            each = jax.vmap(lambda one: per_client(params, one))(examples)
            total = weights.sum()
            return {
                name: jnp.sum(jnp.where(weights > 0, value, 0)) / total
                for name, value in each.items()
            }

        return jax.vmap(of_client)(examples, weights)

    def columns(params: Tree) -> dict[str, float]:
        def of_block(ids, places, weights):
            del ids
            examples = jax.tree.map(
                lambda leaf: np.asarray(leaf)[places], clients.examples
            )
            return measured(params, examples, weights)

        results = _by_client(clients.partition, of_block)
        return summed_up(results, clients.sizes > 0)

    return columns


def _by_client(partition: Partition, measured: Callable[..., Any]) -> Found:
    """Returns results by client; NaN of a client without examples.

    Args:
      measured: `(clients, places, weights) -> {name: results}` of one of the `blocks`.
    """
    found: Found = {}
    for clients, places, weights in blocks(partition):
        results = jax.device_get(measured(clients, places, weights))
        for name, values in results.items():
            column = found.setdefault(name, np.full(partition.clients, np.nan))
            column[clients] = values
    return found


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
        worst = ranked[: max(1, round(TENTH * len(ranked)))]
        for which, some in (("", all_), ("_worst_tenth", worst)):
            row[f"clients_{name}{which}"] = float(some.mean()) if some.size else np.nan
        row[f"clients_{name}_median"] = float(np.median(all_)) if all_.size else np.nan
    return row
