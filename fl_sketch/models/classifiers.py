"""Classifiers of images: from float32 inputs in NHWC order to logits."""

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core import validate
from fl_sketch.core.platforms import by_platform
from fl_sketch.models.convolution import conv, conv_pool

KERNELS = {
    "lecun_normal": nn.initializers.lecun_normal(),
    "glorot_uniform": nn.initializers.glorot_uniform(),
}


class Logistic(nn.Module):
    """Multinomial logistic regression on flattened inputs, from zero."""

    classes: int

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns logits [batch, classes] of float inputs [batch, ...]."""
        return TransposedDense(self.classes, name="dense")(_flat(inputs))


class TransposedDense(nn.Module):
    """A dense layer that starts from zero, with a kernel of shape (features, inputs).

    On a CPU, rounds of logistic regression take half as long as with `nn.Dense`: its
    kernel has rows of a few entries, and products with such rows are slow.
    """

    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the layer's output [batch, features] of `x` [batch, inputs]."""
        zeros = nn.initializers.zeros
        kernel = self.param("kernel", zeros, (self.features, x.shape[-1]))
        bias = self.param("bias", zeros, (self.features,))

        def on_cpu(x, kernel):
            # Without the barrier XLA would transpose inside the product, and the
            # gradient would be a slow one.
            y = lax.dot_general(kernel, x, (((1,), (1,)), ((), ())))
            return lax.optimization_barrier(y).T

        product = by_platform(x, kernel, cpu=on_cpu, default=lambda x, w: x @ w.T)
        return product + bias


class Mlp(nn.Module):
    """Dense layers on flattened inputs, with relu after all but the last.

    Attributes:
      classes: the number of logits.
      hidden: sizes of the layers before the last; None: two layers of `width`.
      width: their size.
    """

    classes: int
    hidden: Sequence[int] | None = None
    width: int = 200

    def __post_init__(self):
        if self.hidden is None:
            self.hidden = (self.width, self.width)
        self.hidden = tuple(self.hidden)
        validate.at_least_one(width=self.width)
        for number, size in enumerate(self.hidden):
            validate.at_least_one(**{f"hidden[{number}]": size})
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns logits [batch, classes] of float inputs [batch, ...]."""
        x = _flat(inputs)
        sizes = tuple(self.hidden or ())
        for number, size in enumerate(sizes, start=1):
            x = nn.relu(nn.Dense(size, name=f"dense{number}")(x))
        return nn.Dense(self.classes, name=f"dense{len(sizes) + 1}")(x)


class LeNet(nn.Module):
    """LeNet-5 with relu and max pooling: 61,706 parameters on 28x28x1.

    Attributes:
      classes: the number of logits.
      padding: of the first convolution; "VALID": 62,006 parameters on 32x32x3.

    Reference: LeCun et al. (1998), with the changes that became usual.
    """

    classes: int
    padding: str = "SAME"

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns logits [batch, classes] of float images in NHWC order."""
        layer = functools.partial(nn.Conv, conv_general_dilated=conv_pool)
        inputs = images(inputs, 12 if self.padding == "SAME" else 16)
        x = nn.relu(layer(6, (5, 5), padding=self.padding, name="conv1")(inputs))
        x = nn.relu(layer(16, (5, 5), padding="VALID", name="conv2")(x))
        x = nn.relu(nn.Dense(120, name="dense1")(_flat(x)))
        x = nn.relu(nn.Dense(84, name="dense2")(x))
        return nn.Dense(self.classes, name="dense3")(x)


class SigmoidLeNet(nn.Module):
    """Three 5x5 convolutions of 12 channels and a dense layer, all smooth: for attacks.

    Weights start uniform in [-0.5, 0.5]; 13,426 parameters on 28x28x1.

    Reference: Zhu et al. (2019), Deep Leakage from Gradients, section 4.1.
    """

    classes: int

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns logits [batch, classes] of float images in NHWC order."""

        def uniform(key, shape, dtype=jnp.float32):
            return jax.random.uniform(key, shape, dtype, -0.5, 0.5)

        wide: dict[str, Any] = {"kernel_init": uniform, "bias_init": uniform}
        fast: dict[str, Any] = wide | {"conv_general_dilated": conv}
        x = images(inputs)
        for number, strides in enumerate((2, 2, 1), start=1):
            x = nn.Conv(12, (5, 5), strides, name=f"conv{number}", **fast)(x)
            x = nn.sigmoid(x)
        return nn.Dense(self.classes, name="dense", **wide)(_flat(x))


class Cnn(nn.Module):
    """Two 3x3 convolutions (32, 64), a pool, a dense layer: 1,626,442 on 32x32x3.

    Attributes:
      classes: the number of logits.
      width: channels of the first convolution; the second has twice as many.
      hidden: the size of the dense layer before the last; None: four times the width.
      dropout: the rate before the last layer in training; after the pool it is half of
        that. The paper has 0.5.
      kernels: the initializer of all kernels, one of `KERNELS`.

    Reference: Reddi et al. (2021), the model of their EMNIST task.
    """

    classes: int
    width: int = 32
    hidden: int | None = None
    dropout: float = 0.0
    kernels: str = "lecun_normal"

    def __post_init__(self):
        if self.hidden is None:
            self.hidden = 4 * self.width
        validate.at_least_one(width=self.width, hidden=self.hidden)
        validate.below_one(dropout=self.dropout)
        validate.one_of(tuple(KERNELS), kernels=self.kernels)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool = False) -> jax.Array:
        """Returns logits [batch, classes] of float images in NHWC order."""
        own: dict[str, Any] = {"kernel_init": KERNELS[self.kernels]}
        layer = functools.partial(nn.Conv, padding="VALID", **own)
        first = layer(self.width, (3, 3), conv_general_dilated=conv, name="conv1")
        second = functools.partial(layer, conv_general_dilated=conv_pool, name="conv2")
        x = nn.relu(first(images(inputs, 6)))
        x = nn.relu(second(2 * self.width, (3, 3))(x))
        x = nn.Dropout(self.dropout / 2, deterministic=not train)(x)
        x = nn.relu(nn.Dense(self.hidden or 0, name="dense1", **own)(_flat(x)))
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return nn.Dense(self.classes, name="dense2", **own)(x)


def images(inputs: jax.Array, least: int = 1) -> jax.Array:
    """Returns `inputs`, float images with as many rows and columns as layers need."""
    if inputs.ndim != 4 or min(inputs.shape[1:3]) < least:
        msg = (
            "Expected images of shape (batch, height, width, channels), of at least "
            f"{least}x{least}, got shape {inputs.shape}."
        )
        raise ValueError(msg)
    return _floats(inputs)


def _flat(inputs: jax.Array) -> jax.Array:
    if inputs.ndim < 2:
        msg = f"Expected a batch of inputs, got shape {inputs.shape}."
        raise ValueError(msg)
    return _floats(inputs).reshape(len(inputs), -1)


def _floats(inputs: jax.Array) -> jax.Array:
    """Returns the inputs; raw bytes in [0, 255] would train, and badly."""
    if not jnp.issubdtype(inputs.dtype, jnp.floating):
        msg = (
            f"Expected float inputs, got {inputs.dtype}: integers are tokens of a text."
        )
        raise TypeError(msg)
    return inputs
