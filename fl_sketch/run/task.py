"""What a config trains: its data and its model, read and checked."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from fl_sketch import models
from fl_sketch.config import build as methods
from fl_sketch.config import inputs, networks
from fl_sketch.config import parse as choices
from fl_sketch.config import privacy as protection
from fl_sketch.config.initial import initial_of
from fl_sketch.config.inputs import Seen
from fl_sketch.config.parse import Numbers
from fl_sketch.core.protocols import Tree
from fl_sketch.data import datasets, partition
from fl_sketch.data.holdout import held_out
from fl_sketch.engine.client_metrics import Clients
from fl_sketch.models.params_io import Arrays


class Problem(NamedTuple):
    """What a config trains, read and checked.

    Attributes:
      config: the config itself.
      splits: the data.
      seen: the way in which the model sees them.
      loss_of: `(numbers) -> Loss`.
      inputs: shape of the first example, as the data set has it.
      params: shapes of the model's parameters.
      initial: arrays that it begins with, by name, in place of random ones.
      batches: shapes of what a client trains on in a round.
    """

    config: ConfigDict
    splits: datasets.Splits
    seen: Seen
    loss_of: Callable[[Numbers], models.Loss]
    inputs: jax.ShapeDtypeStruct
    params: Tree
    initial: Arrays
    batches: Any

    def dealt(self, seed: int) -> tuple[partition.Partition, partition.Partition]:
        """Returns which client trains on which examples, and holds which ones back.

        Both follow from the `seed`.
        """
        targets, owners = self.splits.train.targets, self.splits.owners
        shares = choices.partition_of(self.config, targets, seed, owners)
        return held_out(shares, self.config.data.held_out, seed=seed)

    def clients(self, numbers: Numbers, seed: int) -> Clients:
        """Returns the clients as they are looked at one by one.

        Args:
          numbers: the continuous keys.
          seed: the seed by which they have their examples.
        """
        loss, examples = self.loss_of(numbers), self.splits.train
        own = methods.personal_of(self.config, loss, numbers)
        batch = self.config.client.batch
        return Clients(loss, examples, *self.dealt(seed), own, batch, seed)

    def shares(self, seed: int) -> partition.Partition:
        """Returns which client trains on which examples, with this `seed`."""
        return self.dealt(seed)[0]


def check(config: ConfigDict) -> None:
    """Raises in one line for what can be told of `config` before data are read."""
    choices.check_counts(config)
    inputs.check(config)
    methods.check(config)
    if config.data.clients:  # else the data say how many, and it is checked then
        protection.check(config)
        networks.relay_of(config)


def read(config: ConfigDict, data_dir: str | None) -> Problem:
    """Returns what a config trains.

    Args:
      config: the config, checked as far as it can be without data.
      data_dir: the folder of raw data sets.

    Raises:
      ValueError, TypeError: in one line, for data and models that do not fit together.
      FileNotFoundError: for data that are not there.
    """
    splits = inputs.splits_of(config, data_dir, methods.targets_of(config))
    protection.check_data(config, splits)
    if not config.data.clients:  # the data say how many, and what follows from it
        config = choices.with_clients(config, splits)
        check(config)
    seen = inputs.seen_of(config, splits)
    loss_of = functools.partial(methods.loss_of, config, seen)
    first = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype),
        splits.train,
    )
    loss = loss_of(choices.numbers_of(config))
    params = methods.require_runs(config, loss, first)
    initial = initial_of(config, params)
    batches = _batches(config, splits.train)
    return Problem(
        config, splits, seen, loss_of, first.inputs, params, initial, batches
    )


def _batches(config: ConfigDict, train: datasets.Examples):
    lead = (config.client.steps, config.client.batch)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((*lead, *leaf.shape[1:]), leaf.dtype), train
    )
