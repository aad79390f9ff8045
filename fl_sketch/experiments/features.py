"""Features of images: the output of the last hidden layer of a network.

The network is pretrained, or it is a small one that is trained centrally on the first
half of the training images. The features of the other images are a data set of their
own, for which the network is public.
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from fl_sketch import models
from fl_sketch.core import validate
from fl_sketch.data.examples import Examples, Splits, normalise
from fl_sketch.models import huggingface

LAYER = "dense1"  # whose output, after relu, is the features
BLOCK, FEW = 500, 10  # images at once: small, or enlarged


def extract(
    splits: Splits,
    *,
    width: int = 512,
    epochs: int = 4,
    batch: int = 100,
    rate: float = 1e-3,
    seed: int = 0,
    say: Callable[[str], None] = tqdm.write,
) -> tuple[Examples, Examples]:
    """Returns features of the second half of the training images, and of the others.

    Args:
      epochs: the number of passes of training on the first half.

    Returns:
      Examples whose inputs are float32 [n, width], for training and for testing.

    Raises:
      ValueError: for data that are not images, or fewer than a batch has.
    """
    validate.at_least_one(width=width, epochs=epochs, batch=batch)
    _require_images(splits)
    model = models.build("cnn", splits.classes, hidden=width)
    half = len(splits.train.targets) // 2
    validate.at_most(half, "half of the training images", batch=batch)
    public = Examples(*(leaf[:half] for leaf in splits.train))
    params = _trained(model, public, epochs, batch, rate, seed, say)

    @jax.jit
    def features(inputs):
        _, layers = model.apply(
            {"params": params},
            normalise(inputs),
            capture_intermediates=lambda module, _: module.name == LAYER,
        )
        return jax.nn.relu(layers["intermediates"][LAYER]["__call__"][0])  # pyright: ignore[reportArgumentType]

    rest = Examples(*(leaf[half:] for leaf in splits.train))
    return _of(features, rest, BLOCK), _of(features, splits.test, BLOCK)


def of_pretrained(
    splits: Splits, folder: str | os.PathLike
) -> tuple[Examples, Examples]:
    """Returns the features of all training images, and of the test images.

    Args:
      folder: the folder of a pretrained model of images, as `huggingface.load` has it.

    Raises:
      FileNotFoundError, ValueError: in one line, for data or a folder of another kind.
    """
    _require_images(splits)
    module, params, *_ = huggingface.load(folder)

    @jax.jit
    def features(inputs):
        return module.apply({"params": params}, normalise(inputs))

    return _of(features, splits.train, FEW), _of(features, splits.test, FEW)


def _require_images(splits: Splits) -> None:
    if splits.train.inputs.ndim != 4:
        msg = "Expected a data set of images, got one of texts or vectors."
        raise ValueError(msg)


def _of(
    features: Callable[[Any], jax.Array], examples: Examples, block: int
) -> Examples:
    starts = range(0, len(examples.targets), block)
    parts = [np.asarray(features(examples.inputs[s : s + block])) for s in starts]
    return Examples(np.concatenate(parts), np.asarray(examples.targets))


def _trained(model, examples: Examples, epochs, batch, rate, seed, say):
    loss, tx = models.classification(model), optax.adam(rate)
    count = len(examples.targets) // batch
    first = normalise(jnp.asarray(examples.inputs[:1]))
    params = loss.init(jax.random.key(seed), first)

    @jax.jit
    def step(carry, inputs, targets):
        params, opt = carry
        value, grads = jax.value_and_grad(loss.value)(
            params, normalise(inputs), targets
        )
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), value

    carry, random = (params, tx.init(params)), np.random.default_rng(seed)
    for epoch in range(1, epochs + 1):
        order = random.permutation(len(examples.targets))[: count * batch]
        values = []
        for rows in order.reshape(count, batch):
            carry, value = step(carry, examples.inputs[rows], examples.targets[rows])
            values.append(value)
        mean = float(jnp.mean(jnp.stack(values)))
        say(f"epoch {epoch} of {epochs}: training loss {mean:.4f}")
    return carry[0]
