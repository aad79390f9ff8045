"""Views of single clients: what a model is worth to each, on what it held back.

Means over all examples hide who is served badly. Here every client counts once: the
mean over clients, and that over the tenth of them that fares worst.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import data, models
from fl_sketch.core import files
from fl_sketch.core.protocols import Keys, Local, Server, Tree
from fl_sketch.data.examples import Examples
from fl_sketch.data.partition import Partition
from fl_sketch.models.metrics import METRICS

TOGETHER = 2048  # examples that are measured in one call
TENTH = 0.1
BATCHES = 0x9E25  # apart from the seed's other uses
Found = dict[str, np.ndarray]  # what was measured, by name and then by client
PerExample = Callable[[Tree, Any], Mapping[str, jax.Array]]


@dataclasses.dataclass(frozen=True, eq=False)
class Clients:
    """Clients that are looked at, each with examples of its own.

    Attributes:
      loss: the loss, of inputs as the data set has them.
      examples: the training set on the host.
      kept: the part of it that each client trains on.
      held: the part of it that each client held back.
      local: the steps by which a client makes a model its own.
      batch: the number of examples of such a step.
      seed: the seed of what is drawn for them.
    """

    loss: models.Loss
    examples: Examples
    kept: Partition
    held: Partition
    local: Local
    batch: int
    seed: int

    def look(self, params: Tree, steps: int = 0) -> Found:
        """Returns loss and metrics of each client; NaN of one that held nothing back.

        Args:
          params: the model.
          steps: the number of steps that each client takes from there beforehand.
        """
        found: dict[str, np.ndarray] = {}
        for clients, places, weights in blocks(self.held):
            batches = self._batches(clients, steps) if steps else None
            own = jnp.asarray(clients), self._taken(places), weights, batches
            for name, values in jax.device_get(self._measured(params, *own)).items():
                all_ = found.setdefault(name, np.full(self.held.clients, np.nan))
                all_[clients] = values
        return found

    def _batches(self, clients: np.ndarray, steps: int) -> Examples:
        """Returns batches of the clients' own training examples, drawn by the seed."""
        drawn = []
        for client in clients:
            random = np.random.default_rng([BATCHES, self.seed, client])
            drawn.append(random.choice(self.kept.of(client), (steps, self.batch)))
        return self._taken(np.stack(drawn))

    def _taken(self, places: np.ndarray) -> Examples:
        return Examples(*(np.asarray(leaf)[places] for leaf in self.examples))

    @property
    def _measured(self):
        return _measuring(self.loss, self.local, self.seed)


def blocks(
    partition: Partition,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields clients, the places of their examples, and which of these places count.

    Clients of one block have about as many examples, so that a few shapes do for all.
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


def columns_of(
    per_client: PerExample, clients: data.Clients
) -> Callable[[Tree], dict[str, float]]:
    """Returns `(params) -> columns` of what single clients measure; see `summed_up`.

    Args:
      per_client: `(params, example) -> {name: number}`, of which a client has the mean
        over its examples.
    """

    @jax.jit
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
        found: dict[str, np.ndarray] = {}
        for ids, places, weights in blocks(clients.partition):
            examples = jax.tree.map(
                lambda leaf, at=places: np.asarray(leaf)[at], clients.examples
            )
            values = jax.device_get(measured(params, examples, weights))
            for name, value in values.items():
                column = found.setdefault(name, np.full(clients.population, np.nan))
                column[ids] = value
        return summed_up(found, clients.sizes > 0)

    return columns


def _measuring(loss: models.Loss, local: Local, seed: int):
    """Returns what measures clients: (params, clients, tests, weights, batches)."""

    def own_model(params, client, batches):
        key = jax.random.fold_in(jax.random.key(seed), client)
        server = Server(params, (), (), jnp.int32(0))
        work = local.run(server, local.init(params), batches, Keys(key, key, key))
        return jax.tree.map(jnp.subtract, params, work.update)

    def one(params, client, tests, weights, batches):
        model = params if batches is None else own_model(params, client, batches)
        return loss.report(loss.metrics(model, *tests, weights))

    def measured(params, clients, tests, weights, batches):
        if batches is None:  # one model for all: one batch of all
            each = jax.vmap(one, in_axes=(None, 0, 0, 0, None))
            return each(params, clients, tests, weights, None)
        both = clients, tests, weights, batches
        return jax.lax.map(lambda own: one(params, *own), both)

    return jax.jit(measured)


def summed_up(
    found: Found, seen: np.ndarray, whose: str = "clients"
) -> dict[str, float]:
    """Returns mean, worst tenth and median over clients of everything that was found.

    Where a metric says nothing of a client, as an area under a curve of one class, it
    does not count; a loss counts whatever it is.

    >>> found, seen = {"accuracy": np.array([0.5, 1.0, np.nan, 0.0])}, np.ones(4, bool)
    >>> summed_up(found, seen)["clients_accuracy"]
    0.5

    Args:
      found: what `Clients.look` returned.
      seen: the clients that were looked at, bool [clients].
      whose: the beginning of names.
    """
    row = {}
    for name, values in found.items():
        counts = seen if name == "loss" else seen & ~np.isnan(values)
        own = np.nan_to_num(values[counts], nan=np.inf, posinf=np.inf, neginf=-np.inf)
        higher = name in METRICS and METRICS[name].higher
        ranked = np.sort(own) if higher else -np.sort(-own)
        worst = ranked[: max(1, round(TENTH * len(ranked)))]
        for which, some in (("", own), ("_worst_tenth", worst)):
            row[f"{whose}_{name}{which}"] = float(some.mean()) if some.size else np.nan
        row[f"{whose}_{name}_median"] = float(np.median(own)) if own.size else np.nan
    return row


def write_each(
    path: str | os.PathLike, clients: Clients, found: Found, own: Found | None
) -> None:
    """Writes a row for each client.

    Args:
      path: path of the csv file.
      clients: the clients.
      found: what the model is worth to each.
      own: the same of the model that each made its own; None: nobody did.
    """
    columns: dict[str, Any] = {
        "client": np.arange(clients.held.clients),
        "examples": clients.kept.sizes,
        "held_out": clients.held.sizes,
        **found,
        **{f"personal_{name}": values for name, values in (own or {}).items()},
    }
    rows = zip(*columns.values(), strict=True)
    files.write_rows(path, [dict(zip(columns, row, strict=True)) for row in rows])


def draw(path: str | os.PathLike, name: str, found: Mapping[str, Found]) -> None:
    """Draws how many clients have which value, as a png.

    Args:
      path: path of the picture.
      name: the name of what is drawn.
      found: what was found, by the words of the legend.
    """
    from matplotlib import ticker  # takes a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    plot = figure.subplots()
    values = {label: one[name][np.isfinite(one[name])] for label, one in found.items()}
    everything = np.concatenate(list(values.values()))
    if everything.size:
        bins = np.histogram_bin_edges(everything, bins=20).tolist()
        for label, own in values.items():
            label = f"{label}: mean {own.mean():.3f}"
            plot.hist(own, bins=bins, histtype="step", label=label)
        figure.legend(loc="outside upper center", fontsize="small")
        plot.yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    plot.set(xlabel=f"{name} of a client, on what it held out", ylabel="clients")
    files.write_figure(path, figure)
