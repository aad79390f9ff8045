"""From the values of a config to the algorithm that they name, and its parts."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from fl_sketch import models, trees
from fl_sketch.algorithms import catalog
from fl_sketch.data import datasets, text
from fl_sketch.experiment.choices import Numbers, section
from fl_sketch.local import measuring
from fl_sketch.protocols import Algorithm, Compressor, Sketch, Tree

WATCHED = ("train_loss", "train_accuracy")  # what clients measure, where asked to


def loss_of(config: ConfigDict, classes: int, numbers: Numbers) -> models.Loss:
    """Returns the model's loss on batches of examples."""
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


def sketch_of(config: ConfigDict, params: Tree | int) -> Sketch:
    """Returns the sketch operator for a model."""
    sketch = config.sketch
    with section("sketch"):
        return catalog.build_sketch(
            sketch.operator,
            trees.size(params),
            compression=sketch.compression,
            numbers=sketch.numbers,
            rows=sketch.rows,
            layout=sketch.layout,
            stored=sketch.stored,
            query="median" if config.algorithm in catalog.MEDIANS else "mean",
        )


def compressor_of(config: ConfigDict, d: int, name: str) -> Compressor:
    """Returns a compressor of that name for a model of d parameters."""
    compressor = config.compressor
    with section("compressor"):
        return catalog.build_compressor(
            name, d, compression=compressor.compression, levels=compressor.levels
        )


def measured(loss: models.Loss, params: Tree, batch) -> dict[str, jax.Array]:
    """Returns a client's loss and accuracy on a batch, by the names of `WATCHED`."""
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
      classes: how many the data have.
      d: how many parameters the model has.
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
    """Returns the algorithm, for a model of d parameters.

    A noise multiplier is for algorithms that add noise by themselves.
    """

    def value(params, batch):
        return loss.value(params, datasets.normalise(batch.inputs), batch.targets)

    with section("server"):
        rate = catalog.build_schedule(
            config.server.schedule,
            numbers["server.rate"],
            floor=numbers["server.floor"],
            rounds=config.rounds,
        )
        server = catalog.build_optimizer(
            config.server.optimizer,
            rate,
            b1=numbers["server.b1"],
            b2=numbers["server.b2"],
            eps=numbers["server.eps"],
        )
    client_rate, steps = numbers["client.rate"], config.client.steps
    algorithm = catalog.build(
        config.algorithm,
        value,
        client_rate=client_rate,
        client_clip=numbers["client.clip"],
        proximal=numbers["client.proximal"],
        server_rate=rate,
        server=server,
        sketch=sketch_of(config, d),
        query=config.sketch.query,
        heavy=config.sketch.heavy,
        values=config.sketch.heavy_values,
        gain=numbers["client.gain"] / (client_rate * steps),
        steps=steps,
        population=config.data.clients,
        levels=config.compressor.levels,
        compressor=compressor_of(config, d, config.compressor.name),
        cocktail=compressor_of(config, d, "cocktail"),
        probability=config.compressor.probability,
        momentum=numbers["server.b1"],
        b1=numbers["server.b1"],
        b2=numbers["server.b2"],
        eps=numbers["server.eps"],
        warmup=max(1, round(config.server.warmup * config.rounds)),
        forget=config.sketch.forget,
        masking=config.sketch.masking,
        window=config.sketch.window,
        decay=numbers["client.decay"],
        threshold=numbers["privacy.threshold"],
        noise_multiplier=noise_multiplier,
        cohort=config.cohort.size,
    )
    if not config.privacy.watch:
        return algorithm
    measure = functools.partial(measured, loss)
    return algorithm._replace(local=measuring(algorithm.local, measure))
