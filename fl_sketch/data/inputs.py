"""From the bytes of a data set to what a model sees: scaled, and varied in training.

This is done on the device, to one batch at a time, so that a data set stays as small as
its file.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import plugins, validate
from fl_sketch.data.examples import normalise

MARGIN = 4  # pixels that a crop may be off, as for CIFAR-10
LEAST = 1e-30  # the least deviation that float32 knows from zero
BLOCK = 4096  # examples that are measured together

Augmentation = Callable[[jax.Array, jax.Array], jax.Array]  # (key, batch) -> batch


class Scaling(NamedTuple):
    """The mean and the deviation of each channel, the last axis of inputs."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def scaling_of(inputs: np.ndarray) -> Scaling:
    """Returns the mean and the standard deviation of each channel of a training set.

    A constant channel has deviation 1. Bytes count as 255ths.
    """
    channels, count = inputs.shape[-1] if inputs.ndim > 1 else 1, 0

    def rows_of(block: np.ndarray) -> np.ndarray:
        values = np.asarray(block, np.float64) / (255 if block.dtype == np.uint8 else 1)
        return values.reshape(-1, channels)

    total, square = np.zeros(channels), np.zeros(channels)
    center = rows_of(inputs[:BLOCK]).mean(0)  # a large mean would cost digits
    for start in range(0, len(inputs), BLOCK):
        rows = rows_of(inputs[start : start + BLOCK]) - center
        count += len(rows)
        total += rows.sum(0)
        square += (rows**2).sum(0)
    mean = total / count
    deviation = np.sqrt(np.maximum(square / count - mean**2, 0))
    deviation[deviation == 0] = 1
    return Scaling(tuple((center + mean).tolist()), tuple(deviation.tolist()))


def parsed_scaling(text: str) -> Scaling:
    """Returns the scaling of a text such as "MEAN,..../DEVIATION,..."."""
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
            "standardise must be none, train, or means and deviations of the channels, "
            f"as 0.49,0.48,0.45/0.25,0.24,0.26, got standardise={text!r}."
        )
        raise ValueError(msg)
    return Scaling(mean, deviation)


def scaled(inputs: jax.Array, scaling: Scaling | None) -> jax.Array:
    """Returns a batch as a model sees it: bytes as 255ths, then scaled.

    Tokens stay tokens.
    """
    inputs = normalise(inputs)
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
    """Returns a batch as a model sees it in training.

    It is augmented before it is scaled, so that a margin of zeros is black.
    """
    inputs = normalise(inputs)
    if augmentation is not None:
        inputs = augmentation(key, inputs)
    return scaled(inputs, scaling)


def flip(key: jax.Array, images: jax.Array) -> jax.Array:
    """Returns `images`, about half of them mirrored from left to right."""
    mirrored = jax.random.bernoulli(key, shape=(len(images), 1, 1, 1))
    return jnp.where(mirrored, images[:, :, ::-1], images)


def crop(key: jax.Array, images: jax.Array, margin: str = "constant") -> jax.Array:
    """Returns `images` moved by up to `MARGIN` pixels each way.

    New pixels are 0; with a `margin` of "reflect" they mirror those inside.
    """
    around = ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0))
    wide = jnp.pad(images, around, margin)
    corners = jax.random.randint(key, (len(images), 2), 0, 2 * MARGIN + 1)

    def window(image, corner):
        return jax.lax.dynamic_slice(image, (*corner, 0), images.shape[1:])

    return jax.vmap(window)(wide, corners)


def crop_flip(key: jax.Array, images: jax.Array, margin: str = "constant") -> jax.Array:
    """Returns `images` moved and mirrored, as is usual for CIFAR-10."""
    for_crop, for_flip = jax.random.split(key)
    return flip(for_flip, crop(for_crop, images, margin))


AUGMENTATIONS: dict[str, Augmentation | None] = {
    "none": None,
    "crop": crop,
    "flip": flip,
    "crop_flip": crop_flip,
    "reflect_crop_flip": functools.partial(crop_flip, margin="reflect"),
}


def augmentation(name: str) -> Augmentation | None:
    """Returns one of `AUGMENTATIONS`, or the function FILE.py:NAME of float inputs."""
    if plugins.named(name):
        return plugins.load(name)
    validate.one_of(tuple(AUGMENTATIONS), augment=name)
    return AUGMENTATIONS[name]
