"""From the bytes of a data set to what a model sees: scaled, and varied in training.

Everything here is done on the device, to one batch at a time, so that a data set stays
as small as its file.

>>> import numpy as np
>>> scaling = measured(np.array([[0.0, 10.0], [2.0, 30.0]], np.float32))
>>> scaling
Scaling(mean=(1.0, 20.0), deviation=(1.0, 10.0))
>>> scaled(jnp.array([[3.0, 10.0]]), scaling)
Array([[ 2., -1.]], dtype=float32)
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import plugins, validate
from fl_sketch.data.examples import normalise

MARGIN = 4  # pixels that a crop may be off, as for CIFAR-10
LEAST = 1e-30  # that inputs are divided by, which float32 knows from zero
BLOCK = 4096  # examples that are looked at together

Augmentation = Callable[[jax.Array, jax.Array], jax.Array]  # (key, batch) -> batch


class Scaling(NamedTuple):
    """What inputs are shifted and divided by, for each channel, the last axis.

    Attributes:
      mean: what is taken off.
      deviation: what the rest is divided by.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def measured(inputs: np.ndarray) -> Scaling:
    """Returns the mean and the standard deviation of each channel of a training set.

    A channel that is everywhere the same is divided by 1.

    Args:
      inputs: images as bytes, which count as 255ths, or floats of any shape.
    """
    channels, count = inputs.shape[-1] if inputs.ndim > 1 else 1, 0
    total, square = np.zeros(channels), np.zeros(channels)
    center = _rows(inputs[:BLOCK]).mean(0)  # so that no digit is lost to a large mean
    for start in range(0, len(inputs), BLOCK):
        rows = _rows(inputs[start : start + BLOCK]) - center
        count += len(rows)
        total += rows.sum(0)
        square += (rows**2).sum(0)
    mean = total / count
    deviation = np.sqrt(np.maximum(square / count - mean**2, 0))
    deviation[deviation == 0] = 1
    return Scaling(tuple((center + mean).tolist()), tuple(deviation.tolist()))


def _rows(inputs: np.ndarray) -> np.ndarray:
    """Returns one row of channels, float64, for each place of each example."""
    found = np.asarray(inputs, np.float64) / (255 if inputs.dtype == np.uint8 else 1)
    return found.reshape(-1, inputs.shape[-1] if inputs.ndim > 1 else 1)


def given(text: str) -> Scaling:
    """Returns the scaling that `text` says, as "MEAN,..../DEVIATION,...".

    >>> given("0.5/0.25").deviation
    (0.25,)

    Raises:
      ValueError: in one line, for any other text.
    """
    try:
        mean, deviation = (
            tuple(map(float, part.split(","))) for part in text.split("/")
        )
        right = len(mean) == len(deviation) and min(deviation) >= LEAST
        right = right and max(map(abs, (*mean, *deviation))) <= 1 / LEAST
    except ValueError:
        mean, deviation, right = (), (), False
    if not right:
        msg = (
            "Expected standardise to be none, train, or means and deviations of the "
            f"channels, from {LEAST:g} to {1 / LEAST:g}, as "
            f"0.49,0.48,0.45/0.25,0.24,0.26, got standardise={text!r}."
        )
        raise ValueError(msg)
    return Scaling(mean, deviation)


def scaled(inputs: jax.Array, scaling: Scaling | None) -> jax.Array:
    """Returns inputs as a model sees them: bytes as 255ths, then scaled.

    Args:
      inputs: a batch, as the data set has it; tokens stay tokens.
      scaling: what to take off and divide by, or None.
    """
    return _shifted(normalise(inputs), scaling)


def _shifted(inputs: jax.Array, scaling: Scaling | None) -> jax.Array:
    if scaling is None:
        return inputs
    mean, deviation = (jnp.asarray(part, jnp.float32) for part in scaling)
    return (inputs - mean) / deviation


def varied(
    key: jax.Array,
    inputs: jax.Array,
    scaling: Scaling | None,
    augmentation: Augmentation | None,
) -> jax.Array:
    """Returns inputs as a model sees them in training.

    What varies them comes before the scaling, so that a margin of zeros is black.

    Args:
      key: the key of this batch.
      inputs: a batch, as the data set has it.
      scaling: what to take off and divide by, or None.
      augmentation: what varies it, or None.
    """
    inputs = normalise(inputs)
    if augmentation is not None:
        inputs = augmentation(key, inputs)
    return _shifted(inputs, scaling)


def flip(key: jax.Array, images: jax.Array) -> jax.Array:
    """Returns `images`, half of them, chosen by `key`, mirrored from left to right."""
    mirrored = jax.random.bernoulli(key, shape=(len(images), 1, 1, 1))
    return jnp.where(mirrored, images[:, :, ::-1], images)


def crop(key: jax.Array, images: jax.Array) -> jax.Array:
    """Returns `images` moved by up to `MARGIN` pixels, by `key`; what comes in is 0."""
    around = ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0))
    wide = jnp.pad(images, around)
    places = jax.random.randint(key, (len(images), 2), 0, 2 * MARGIN + 1)

    def one(image, place):
        return jax.lax.dynamic_slice(image, (*place, 0), images.shape[1:])

    return jax.vmap(one)(wide, places)


def crop_flip(key: jax.Array, images: jax.Array) -> jax.Array:
    """Returns `images` moved and mirrored by `key`, as is usual for CIFAR-10."""
    one, two = jax.random.split(key)
    return flip(two, crop(one, images))


AUGMENTATIONS: dict[str, Augmentation | None] = {
    "none": None,
    "crop": crop,
    "flip": flip,
    "crop_flip": crop_flip,
}


def augmentation(name: str) -> Augmentation | None:
    """Returns what varies the inputs of a batch in training; None: nothing.

    Args:
      name: a name of `AUGMENTATIONS`, or FILE.py:NAME, a function `(key, batch) ->
        batch` of float inputs.

    Raises:
      ValueError, TypeError, FileNotFoundError: in one line, for anything else.
    """
    if not plugins.named(name):
        validate.one_of(tuple(AUGMENTATIONS), augment=name)
        return AUGMENTATIONS[name]
    own: Augmentation = plugins.load(name)
    if callable(own):
        return own
    msg = f"Expected {name} to be a function of (key, batch), got {own!r}."
    raise TypeError(msg)
