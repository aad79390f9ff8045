"""From the values of a config to the algorithm that they name, and its parts."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from fl_sketch import models
from fl_sketch.algorithms import catalog
from fl_sketch.config import arguments
from fl_sketch.config.arguments import Parts
from fl_sketch.config.choices import Numbers, section
from fl_sketch.data import datasets, text
from fl_sketch.local import measuring
from fl_sketch.protocols import Algorithm, Tree

WATCHED = ("train_loss", "train_accuracy")  # what clients measure, where asked to


def loss_of(config: ConfigDict, classes: int, numbers: Numbers) -> models.Loss:
    """Returns the loss of a config's model: its start, its value and its metrics.

    Args:
      config: the config; its section `model` names the model, and its size.
      classes: the number of classes of the data.
      numbers: the continuous keys, which may be traced.

    Raises:
      ValueError: in one line, for a model that there is not.
    """
    with section("model"):
        name, options = config.model.name, {"size": config.model.size}
        if name == "transformer":
            options["vocabulary"] = config.data.vocabulary
        return models.classification(
            models.build(name, classes, **options),
            label_smoothing=numbers["model.label_smoothing"],
            weight_decay=numbers["model.weight_decay"],
            padding=text.PAD if name == "language_model" else None,
        )


def measured(loss: models.Loss, params: Tree, batch) -> dict[str, jax.Array]:
    """Returns a client's loss and accuracy on a batch, by the names of `WATCHED`.

    Args:
      loss: the loss that `loss_of` made.
      params: the model that the client was given.
      batch: `Examples`, whose pixels are still bytes.
    """
    ones = jnp.ones(batch.targets.shape[0])
    inputs = datasets.normalise(batch.inputs)
    sums = loss.metrics(params, inputs, batch.targets, ones)
    found = (sums["loss"] / sums["count"], sums["correct"] / sums["count"])
    return dict(zip(WATCHED, found, strict=True))


def bare_of(
    config: ConfigDict, classes: int, d: int
) -> Callable[[Numbers, float], Algorithm]:
    """Returns `(numbers, noise_multiplier) -> Algorithm`, without a mechanism.

    Args:
      config: the config, checked.
      classes: the number of classes of the data.
      d: the number of the model's parameters.
    """

    def bare(numbers, noise_multiplier):
        loss = loss_of(config, classes, numbers)
        return algorithm_of(config, loss, d, numbers, noise_multiplier)

    return bare


def algorithm_of(
    config: ConfigDict,
    loss: models.Loss,
    d: int,
    numbers: Numbers,
    noise_multiplier: float = 0.0,
) -> Algorithm:
    """Returns the algorithm that a config names, without a mechanism.

    Args:
      config: the config, checked.
      loss: the loss that `loss_of` made; clients get the gradient of its value.
      d: the number of the model's parameters.
      numbers: the continuous keys, which may be traced.
      noise_multiplier: z, for algorithms that add noise by themselves.
    """

    def value(params, batch):
        return loss.value(params, datasets.normalise(batch.inputs), batch.targets)

    method = catalog.method(config.algorithm)
    given = arguments.taken(method, Parts(config, d, numbers, noise_multiplier))
    algorithm = method.make(value, **given)
    if not config.privacy.watch:
        return algorithm
    measure = functools.partial(measured, loss)
    return algorithm._replace(local=measuring(algorithm.local, measure))
