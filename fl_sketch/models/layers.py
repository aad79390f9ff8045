"""Layers that are fast on CPUs too: a dense one from zero, and normalising ones."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core.platforms import by_platform

MOMENTUM = 0.9  # of batch statistics, from step to step, as implementations have it
GROUPS = 8
EPSILON = 1e-6  # added to variances, as in flax


class ByClass(nn.Module):
    """A dense layer that starts from zero, with a kernel of shape (classes, inputs).

    CPUs are slow with products whose rows are a few numbers long, such as the gradient
    of a kernel of shape (inputs, classes).
    """

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the layer's output [batch, classes] of `x` [batch, inputs]."""
        zeros = nn.initializers.zeros
        kernel = self.param("kernel", zeros, (self.classes, x.shape[-1]))
        bias = self.param("bias", zeros, (self.classes,))

        def plain(x, kernel):
            return x @ kernel.T

        def by_class(x, kernel):
            # Without the barrier XLA would transpose inside the product, and the
            # gradient would be a slow one.
            y = lax.dot_general(kernel, x, (((1,), (1,)), ((), ())))
            return lax.optimization_barrier(y).T

        return by_platform(x, kernel, cpu=by_class, default=plain) + bias


class GroupNorm(nn.Module):
    """Group normalisation with the parameters and numbers of `flax.linen.GroupNorm`.

    Places are summed before the channels of a group. A group is a few channels wide,
    and CPUs are slow with sums over so few neighbours at a time.
    """

    groups: int
    scale_init: nn.initializers.Initializer = nn.initializers.ones

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns images `x` in NHWC order, normalised, scaled and shifted.

        Sums are at least float32.
        """
        channels = x.shape[-1]
        scale = self.param("scale", self.scale_init, (channels,))
        bias = self.param("bias", nn.initializers.zeros, (channels,))
        of_one, dtype = channels // self.groups, jnp.result_type(x, scale, bias)
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))

        def mean(values):
            of_channels = values.mean((1, 2)).reshape(len(x), self.groups, of_one)
            of_groups = of_channels.mean(-1, keepdims=True)
            return jnp.broadcast_to(of_groups, of_channels.shape).reshape(
                len(x), 1, 1, channels
            )

        center = mean(x)
        variance = jnp.maximum(mean(x * x) - center * center, 0)
        y = (x - center) * (lax.rsqrt(variance + EPSILON) * scale) + bias
        return y.astype(dtype)


def _by_groups(
    train: bool, x: jax.Array, name: str, groups: int = GROUPS, **options: Any
) -> jax.Array:
    """Normalises over `groups` of channels, or the most below that divide these."""
    del train
    return GroupNorm(math.gcd(groups, x.shape[-1]), name=name, **options)(x)


def _by_batch(
    train: bool, x: jax.Array, name: str, groups: int = GROUPS, **options: Any
) -> jax.Array:
    """Normalises over a batch in training, and else by the averages of batches."""
    del groups
    options |= {"momentum": MOMENTUM, "use_fast_variance": False, "name": name}
    return nn.BatchNorm(not train, **options)(x)


# `(train, x, name, groups=GROUPS, **options) -> x`, normalised by a layer of that name;
# `scale_init` is an option of both.
NORMS: dict[str, Callable[..., jax.Array]] = {"group": _by_groups, "batch": _by_batch}
