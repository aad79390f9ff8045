"""Layers that normalise, by name: of each example by itself, or of a batch.

>>> import jax.numpy as jnp
>>> layer = nn.BatchNorm(use_running_average=False, momentum=KEPT)
>>> kept = layer.init_with_output(jax.random.key(0), jnp.ones((4, 2)))[1]
>>> kept["batch_stats"]["mean"]
Array([0., 0.], dtype=float32)
"""

import math
from collections.abc import Callable

import flax.linen as nn
import jax

KEPT = 0.9  # of batch statistics, from step to step, as implementations have it
GROUPS = 8

# `(train, x, name, groups=GROUPS) -> x` normalised, a layer of that name.
Norm = Callable[..., jax.Array]


def _by_groups(train: bool, x: jax.Array, name: str, groups: int = GROUPS) -> jax.Array:
    """Normalises over groups of channels, or as many below as divide these."""
    del train
    return nn.GroupNorm(math.gcd(groups, x.shape[-1]), name=name)(x)


def _by_batch(train: bool, x: jax.Array, name: str, groups: int = GROUPS) -> jax.Array:
    """Normalises over the examples of a batch, or else by what was kept of batches."""
    del groups
    layer = nn.BatchNorm(not train, momentum=KEPT, use_fast_variance=False, name=name)
    return layer(x)


NORMS: dict[str, Norm] = {"group": _by_groups, "batch": _by_batch}
