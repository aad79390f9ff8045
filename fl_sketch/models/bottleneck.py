"""The ResNet of 101 layers, for images of 32x32.

>>> resnet101(10).stages
(3, 4, 23, 3)
"""

import flax.linen as nn
import jax

from fl_sketch import validate
from fl_sketch.models.convolution import Conv

GROUPS = 32  # of group normalisation
WIDENING = 4  # of a block's output over its inner layers


def resnet101(classes: int) -> nn.Module:
    """A ResNet of bottleneck blocks: 42,512,970 parameters for 10 classes.

    Args:
      classes: the number of logits of an image, of 32x32x3 as a rule.

    References: He et al. (2016), Table 1, with a first layer for small images as in
    their section 4.2; Wu and He (2018) on group normalisation.
    """
    validate.at_least_one(classes=classes)
    return Bottlenecks(classes, (3, 4, 23, 3))


class Bottlenecks(nn.Module):
    """A ResNet of bottleneck blocks.

    Attributes:
      classes: the number of logits of an image.
      stages: the number of blocks of each stage; its channels are twice those of the
        one before, and its images half as high and wide.
    """

    classes: int
    stages: tuple[int, ...]

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns logits [batch, classes] of float images in NHWC order."""
        x = Conv(64, (3, 3), use_bias=False, name="conv")(inputs)
        x = nn.relu(nn.GroupNorm(GROUPS, name="norm")(x))
        for stage, blocks in enumerate(self.stages):
            for number in range(blocks):
                strides = 2 if stage > 0 and number == 0 else 1
                name = f"stage{stage + 1}_block{number + 1}"
                x = Bottleneck(64 * 2**stage, strides, name=name)(x)
        return nn.Dense(self.classes, name="dense")(x.mean((1, 2)))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, beside a shortcut.

    Attributes:
      features: channels of the inner layers; the block's output has `WIDENING` times as
        many.
      strides: strides of the 3x3 convolution, and of a shortcut that has to follow it.
    """

    features: int
    strides: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the block's output of `x`, both in NHWC order."""

        def layer(x, number, features, size, strides=1):
            kernel = {"strides": strides, "use_bias": False, "name": f"conv{number}"}
            y = Conv(features, (size, size), **kernel)(x)
            return nn.GroupNorm(GROUPS, name=f"norm{number}")(y)

        wide = WIDENING * self.features
        y = nn.relu(layer(x, 1, self.features, 1))
        y = nn.relu(layer(y, 2, self.features, 3, self.strides))
        y = layer(y, 3, wide, 1)
        if x.shape != y.shape:
            x = layer(x, 4, wide, 1, self.strides)
        return nn.relu(x + y)
