"""Layers that normalise, by name: of each example by itself, or of a batch.

>>> import jax.numpy as jnp
>>> layer = nn.BatchNorm(use_running_average=False, momentum=KEPT)
>>> kept = layer.init_with_output(jax.random.key(0), jnp.ones((4, 2)))[1]
>>> kept["batch_stats"]["mean"]
Array([0., 0.], dtype=float32)
"""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

KEPT = 0.9  # of batch statistics, from step to step, as implementations have it
GROUPS = 8
EPSILON = 1e-6  # added to variances, as in flax


class GroupNorm(nn.Module):
    """Group normalisation with the parameters and numbers of `flax.linen.GroupNorm`.

    Places are added up before the channels of a group. A group is a few channels wide,
    and CPUs are slow with sums over so few neighbours at a time.

    Attributes:
      groups: the number of groups of channels.
      scale_init: the initializer of the scales.
    """

    groups: int
    scale_init: nn.initializers.Initializer = nn.initializers.ones

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns images `x` in NHWC order, normalised, scaled and shifted.

        They are added up in float32 at least.
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


# `(train, x, name, groups=GROUPS, **of_layer) -> x` normalised, a layer of that name;
# `scale_init` is what both kinds take.
Norm = Callable[..., jax.Array]


def _by_groups(
    train: bool, x: jax.Array, name: str, groups: int = GROUPS, **of_layer: Any
) -> jax.Array:
    """Normalises over groups of channels, or as many below as divide these."""
    del train
    return GroupNorm(math.gcd(groups, x.shape[-1]), name=name, **of_layer)(x)


def _by_batch(
    train: bool, x: jax.Array, name: str, groups: int = GROUPS, **of_layer: Any
) -> jax.Array:
    """Normalises over the examples of a batch, or else by what was kept of batches."""
    del groups
    of_layer |= {"momentum": KEPT, "use_fast_variance": False, "name": name}
    return nn.BatchNorm(not train, **of_layer)(x)


NORMS: dict[str, Norm] = {"group": _by_groups, "batch": _by_batch}
