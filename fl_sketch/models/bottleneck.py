"""The ResNet of 101 layers, for images of 32x32.

>>> resnet101(10).stages
(3, 4, 23, 3)
"""

from typing import ClassVar

import flax.linen as nn
import jax

from fl_sketch.core import validate
from fl_sketch.models.convolution import Conv
from fl_sketch.models.normalisation import NORMS

GROUPS = 32  # of group normalisation
WIDENING = 4  # of a block's output over its inner layers


def resnet101(classes: int, *, norm: str = "group") -> nn.Module:
    """A ResNet of bottleneck blocks: 42,512,970 parameters for 10 classes.

    Args:
      classes: the number of logits of an image, of 32x32x3 as a rule.
      norm: the kind of normalisation: "group", or "batch", which keeps statistics.

    References: He et al. (2016), Table 1, with a first layer for small images as in
    their section 4.2; Wu and He (2018), section 4.1, on group normalisation and on
    scales that begin with zero.
    """
    validate.at_least_one(classes=classes)
    validate.one_of(tuple(NORMS), norm=norm)
    return Bottlenecks(classes, (3, 4, 23, 3), norm)


class Bottlenecks(nn.Module):
    """A ResNet of bottleneck blocks.

    Attributes:
      classes: the number of logits of an image.
      stages: the number of blocks of each stage; its channels are twice those of the
        one before, and its images half as high and wide.
      norm: the kind of normalisation.
      dropout: none, as the paper has it.
    """

    classes: int
    stages: tuple[int, ...]
    norm: str
    dropout: ClassVar[float] = 0.0

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool = False) -> jax.Array:
        """Returns logits [batch, classes] of float images in NHWC order."""
        x = Conv(64, (3, 3), use_bias=False, name="conv")(inputs)
        x = nn.relu(NORMS[self.norm](train, x, "norm", groups=GROUPS))
        for stage, blocks in enumerate(self.stages):
            for number in range(blocks):
                strides = 2 if stage > 0 and number == 0 else 1
                name = f"stage{stage + 1}_block{number + 1}"
                block = Bottleneck(64 * 2**stage, strides, self.norm, name=name)
                x = block(x, train)
        return nn.Dense(self.classes, name="dense")(x.mean((1, 2)))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, beside a shortcut.

    The last normalisation before the sum begins with scales of zero, so that a block
    begins as its shortcut: from ones, the first gradient was eight times as long.

    Attributes:
      features: channels of the inner layers; the block's output has `WIDENING` times as
        many.
      strides: strides of the 3x3 convolution, and of a shortcut that has to follow it.
      norm: the kind of normalisation.
    """

    features: int
    strides: int
    norm: str

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Returns the block's output of `x`, both in NHWC order."""

        def layer(x, number, features, size, strides=1, **scales):
            kernel = {"strides": strides, "use_bias": False, "name": f"conv{number}"}
            y, name = Conv(features, (size, size), **kernel)(x), f"norm{number}"
            return NORMS[self.norm](train, y, name, groups=GROUPS, **scales)

        wide = WIDENING * self.features
        y = nn.relu(layer(x, 1, self.features, 1))
        y = nn.relu(layer(y, 2, self.features, 3, self.strides))
        y = layer(y, 3, wide, 1, scale_init=nn.initializers.zeros)
        if x.shape != y.shape:
            x = layer(x, 4, wide, 1, self.strides)
        return nn.relu(x + y)
