"""Residual networks for images of 32x32.

With norm="batch" they also keep statistics, which mix the examples of a client. Where
clients differ, the averages of these statistics fit none of them.

>>> resnet(10).stages
(3, 3, 3)
"""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from fl_sketch.core import validate
from fl_sketch.models.classifiers import images
from fl_sketch.models.convolution import conv
from fl_sketch.models.layers import NORMS

BOTTLENECK_GROUPS = 32  # of group normalisation
WIDENING = 4  # of the output of a bottleneck over its inner layers


def resnet(
    classes: int, *, width: int = 16, blocks: int = 3, norm: str = "group"
) -> nn.Module:
    """The 6 blocks + 2 layer ResNet for 32x32 images.

    Its default, ResNet-20, has 269,722 parameters on 32x32x3 and 10 classes.

    Args:
      classes: the number of logits.
      width: channels of the first of three stages; each next one has twice as many.
      blocks: the number of residual blocks of a stage.
      norm: "group" normalises each example by itself, "batch", as printed, keeps
        statistics.

    References: He et al. (2016), section 4.2, with the shortcut of option A;
    Hsieh et al. (2020) on group normalisation for clients that differ.
    """
    validate.at_least_one(classes=classes, width=width, blocks=blocks)
    validate.one_of(tuple(NORMS), norm=norm)
    return ResNet(classes, width, (blocks,) * 3, norm)


def resnet101(classes: int, *, norm: str = "group") -> nn.Module:
    """A ResNet of bottleneck blocks: 42,512,970 parameters for 10 classes.

    Args:
      classes: the number of logits of an image, usually of 32x32x3.
      norm: "group", or "batch", which keeps statistics.

    References: He et al. (2016), Table 1, with a first layer for small images as in
    their section 4.2; Wu and He (2018), section 4.1, on group normalisation and on
    scales that begin with zero.
    """
    validate.at_least_one(classes=classes)
    validate.one_of(tuple(NORMS), norm=norm)
    return ResNet(classes, 64, (3, 4, 23, 3), norm, bottleneck=True)


class ResNet(nn.Module):
    """The module of `resnet` and of `resnet101`.

    Attributes:
      width: channels of the first stage. Each next one has twice as many, and images
        half as high and wide.
      stages: the number of blocks of each stage.
      bottleneck: whether blocks are `Bottleneck` rather than `Residual`.
      dropout: none, as in the papers.
    """

    classes: int
    width: int
    stages: tuple[int, ...]
    norm: str
    bottleneck: bool = False
    dropout: ClassVar[float] = 0.0

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool = False) -> jax.Array:
        """Returns logits [batch, classes] of float images in NHWC order."""
        kind = Bottleneck if self.bottleneck else Residual
        groups = {"groups": BOTTLENECK_GROUPS} if self.bottleneck else {}
        x = _conv(self.width, 3, "conv")(images(inputs))
        x = nn.relu(NORMS[self.norm](train, x, "norm", **groups))
        for stage, blocks in enumerate(self.stages):
            for number in range(blocks):
                strides = 2 if stage > 0 and number == 0 else 1
                name = f"stage{stage + 1}_block{number + 1}"
                block = kind(self.width * 2**stage, strides, self.norm, name=name)
                x = block(x, train)
        return nn.Dense(self.classes, name="dense")(x.mean((1, 2)))


class Residual(nn.Module):
    """Two convolutions, added to a shortcut that pads channels with zeros.

    Attributes:
      features: channels of the output, no fewer than those of the input.
      strides: strides of the first convolution and of the shortcut.
      norm: one of `NORMS`.
    """

    features: int
    strides: int
    norm: str

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Returns the block's output of `x`, both in NHWC order."""
        norm = NORMS[self.norm]
        y = _conv(self.features, 3, "conv1", self.strides)(x)
        y = nn.relu(norm(train, y, "norm1"))
        y = norm(train, _conv(self.features, 3, "conv2")(y), "norm2")
        shortcut = x[:, :: self.strides, :: self.strides]
        more = self.features - x.shape[-1]
        return nn.relu(y + jnp.pad(shortcut, ((0, 0), (0, 0), (0, 0), (0, more))))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, added to a shortcut.

    The last normalisation before the sum begins with scales of zero, so that a block
    begins as its shortcut. With ones, the first gradient was eight times as long.

    Attributes:
      features: channels of the inner layers; the block's output has `WIDENING` times as
        many.
      strides: strides of the 3x3 convolution, and of a shortcut that is not the
        identity.
      norm: one of `NORMS`.
    """

    features: int
    strides: int
    norm: str

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Returns the block's output of `x`, both in NHWC order."""

        def layer(x, number, features, size, strides=1, **scales):
            y = _conv(features, size, f"conv{number}", strides)(x)
            scales |= {"groups": BOTTLENECK_GROUPS}
            return NORMS[self.norm](train, y, f"norm{number}", **scales)

        wide = WIDENING * self.features
        y = nn.relu(layer(x, 1, self.features, 1))
        y = nn.relu(layer(y, 2, self.features, 3, self.strides))
        y = layer(y, 3, wide, 1, scale_init=nn.initializers.zeros)
        if x.shape != y.shape:
            x = layer(x, 4, wide, 1, self.strides)
        return nn.relu(x + y)


def _conv(features: int, size: int, name: str, strides: int = 1) -> nn.Conv:
    fast: dict[str, Any] = {"conv_general_dilated": conv}
    return nn.Conv(features, (size, size), strides, use_bias=False, name=name, **fast)
