"""Residual networks for images of 32x32.

With norm="batch" they also keep statistics, which mix the examples of a client. Where
clients differ, the averages of these statistics fit none of them.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core import validate
from fl_sketch.models.classifiers import images
from fl_sketch.models.convolution import conv

NORMS = ("group", "batch")
GROUPS = 8  # of group normalisation
BOTTLENECK_GROUPS = 32  # of a network of bottlenecks
MOMENTUM = 0.9  # of batch statistics, from step to step, as implementations have it
EPSILON = 1e-6  # added to variances, as in flax
WIDENING = 4  # of the output of a bottleneck over its inner layers


class ResNet(nn.Module):
    """The 6 blocks + 2 layer ResNet for 32x32 images, or one of bottleneck blocks.

    Its default, ResNet-20, has 269,722 parameters on 32x32x3 and 10 classes. ResNet-101
    (width 64, stages 3, 4, 23, 3, bottlenecks) has 42,512,970.

    Attributes:
      classes: the number of logits.
      width: channels of the first stage. Each next one has twice as many, and images
        half as high and wide.
      stages: the number of blocks of each stage.
      norm: "group" normalises each example by itself, "batch", as printed, keeps
        statistics.
      bottleneck: whether blocks are `Bottleneck` rather than `Residual`.
      dropout: none, as in the papers.

    References: He et al. (2016), section 4.2, with the shortcut of option A, and their
    Table 1 with a first layer for small images; Wu and He (2018), section 4.1, on group
    normalisation; Hsieh et al. (2020) on it for clients that differ.
    """

    classes: int
    width: int = 16
    stages: Sequence[int] = (3, 3, 3)
    norm: str = "group"
    bottleneck: bool = False
    dropout: ClassVar[float] = 0.0

    def __post_init__(self):
        self.stages = tuple(self.stages)
        validate.at_least_one(width=self.width)
        for number, blocks in enumerate(self.stages):
            validate.at_least_one(**{f"stages[{number}]": blocks})
        validate.one_of(NORMS, norm=self.norm)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool = False) -> jax.Array:
        """Returns logits [batch, classes] of float images in NHWC order."""
        block = Bottleneck if self.bottleneck else Residual
        groups = BOTTLENECK_GROUPS if self.bottleneck else GROUPS
        x = _conv(self.width, 3, "conv")(images(inputs))
        x = nn.relu(normalized(self.norm, groups, train, x, "norm"))
        for stage, blocks in enumerate(self.stages):
            for number in range(blocks):
                strides = 2 if stage > 0 and number == 0 else 1
                name = f"stage{stage + 1}_block{number + 1}"
                x = block(self.width * 2**stage, strides, self.norm, name=name)(
                    x, train
                )
        return nn.Dense(self.classes, name="dense")(x.mean((1, 2)))


class Residual(nn.Module):
    """Two convolutions, added to a shortcut that pads channels with zeros.

    Strides are those of the first convolution and of the shortcut.
    """

    features: int
    strides: int
    norm: str

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Returns the block's output of `x`, both in NHWC order."""
        strides = self.strides
        y = _conv(self.features, 3, "conv1", strides)(x)
        y = nn.relu(normalized(self.norm, GROUPS, train, y, "norm1"))
        y = _conv(self.features, 3, "conv2")(y)
        y = normalized(self.norm, GROUPS, train, y, "norm2")
        shortcut = x[:, ::strides, ::strides]
        more = self.features - x.shape[-1]
        return nn.relu(y + jnp.pad(shortcut, ((0, 0), (0, 0), (0, 0), (0, more))))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, added to a shortcut.

    The last normalisation before the sum starts with scales of zero, so that a block
    starts as its shortcut. With ones, the first gradient was eight times as long.

    The block's output has `WIDENING` times as many channels as its inner layers.
    Strides are those of the 3x3 convolution, and of a shortcut that is not the
    identity.
    """

    features: int
    strides: int
    norm: str

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Returns the block's output of `x`, both in NHWC order."""

        def norm(y, name, scale_init=nn.initializers.ones):
            groups = BOTTLENECK_GROUPS
            return normalized(self.norm, groups, train, y, name, scale_init)

        inner, strides = self.features, self.strides
        wide = WIDENING * inner
        y = _conv(inner, 1, "conv1")(x)
        y = nn.relu(norm(y, "norm1"))
        y = _conv(inner, 3, "conv2", strides)(y)
        y = nn.relu(norm(y, "norm2"))
        y = _conv(wide, 1, "conv3")(y)
        y = norm(y, "norm3", nn.initializers.zeros)
        if x.shape != y.shape:
            x = _conv(wide, 1, "conv4", strides)(x)
            x = norm(x, "norm4")
        return nn.relu(x + y)


def _conv(features: int, size: int, name: str, strides: int = 1) -> nn.Conv:
    fast: dict[str, Any] = {"conv_general_dilated": conv}
    return nn.Conv(features, (size, size), strides, use_bias=False, name=name, **fast)


def normalized(
    norm: str,
    groups: int,
    train: bool,
    x: jax.Array,
    name: str,
    scale_init: nn.initializers.Initializer = nn.initializers.ones,
) -> jax.Array:
    """Returns `x` normalised by a layer of that `name`, of one of `NORMS`.

    There are as many `groups` of channels, or the most below that divide these.
    """
    if norm == "group":
        groups = math.gcd(groups, x.shape[-1])
        return GroupNorm(groups, scale_init, name=name)(x)
    return nn.BatchNorm(
        not train,
        momentum=MOMENTUM,
        use_fast_variance=False,
        scale_init=scale_init,
        name=name,
    )(x)


class GroupNorm(nn.Module):
    """Group normalisation with the parameters and values of `flax.linen.GroupNorm`.

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
