"""EfficientNet-Lite0: 4.7 million parameters, for images of 224x224.

The statistics of its batch normalisation are constants, which `from_torch` merged into
scales and shifts, so the model only has parameters. Reference: Tan and Le (2019), in
the form without squeeze and excitation, with relu6.
"""

import flax.linen as nn
import jax

from fl_sketch.core import validate
from fl_sketch.core.pretrained import Folder
from fl_sketch.models.classifiers import images as checked
from fl_sketch.models.huggingface.arrays import (
    CONVOLUTION,
    DENSE,
    Entry,
    Form,
    table,
)
from fl_sketch.models.transformers import SPREAD

STAGES = (  # blocks, the side of a window, channels, the stride of the first block
    (1, 3, 16, 1),
    (2, 3, 24, 2),
    (2, 5, 40, 2),
    (3, 3, 80, 2),
    (3, 5, 112, 1),
    (4, 5, 192, 2),
    (1, 3, 320, 1),
)
STEM, WIDENING, FEATURES = 32, 6, 1280
LAYERS = (  # a convolution, its normalisation, and both in the module
    ("_conv_stem", "_bn0", "conv", "norm"),
    ("_blocks.{}._expand_conv", "_blocks.{}._bn0", "block{}/conv1", "block{}/norm1"),
    ("_blocks.{}._depthwise_conv", "_blocks.{}._bn1", "block{}/conv2", "block{}/norm2"),
    ("_blocks.{}._project_conv", "_blocks.{}._bn2", "block{}/conv3", "block{}/norm3"),
    ("_conv_head", "_bn1", "conv_last", "norm_last"),
)
ENTRIES = (
    *(
        entry
        for conv, norm, our_conv, our_norm in LAYERS
        for entry in (
            Entry(f"{conv}.weight", f"{our_conv}/kernel", CONVOLUTION),
            Entry(f"{norm}.weight", f"{our_norm}/scale"),
            Entry(f"{norm}.bias", f"{our_norm}/bias"),
        )
    ),
    Entry("_fc.weight", "dense/kernel", DENSE, optional=True),
    Entry("_fc.bias", "dense/bias", optional=True),
)
BLOCKS = sum(blocks for blocks, *_ in STAGES)


def form(folder: Folder) -> Form:
    """Returns the names of the arrays of a folder."""
    del folder
    return Form(table(ENTRIES, BLOCKS), "", "_(?!fc)", "$")


def module(folder: Folder, classes: int, *, dropout: float = 0.0) -> nn.Module:
    """Returns the module that the `config.json` of a folder describes.

    Its `image_size` is the height and width to which images are resized; `image_mean`
    and `image_std` shift and divide pixels in [0, 1].

    Args:
      classes: the number of logits; 0: the 1280 features, without a head.
      dropout: the rate in training, before the head.
    """
    validate.below_one(dropout=dropout)
    size, center = folder.count("image_size", 224), folder.number("image_mean", 0.498)
    return EfficientNetLite0(
        classes, size, center, folder.number("image_std", 0.502), dropout
    )


class EfficientNetLite0(nn.Module):
    """The module of `module`."""

    classes: int
    size: int
    mean: float
    deviation: float
    dropout: float

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        """Returns logits [batch, classes] of float images [batch, height, width, 3]."""
        x = checked(images)
        shape = (len(x), self.size, self.size, x.shape[-1])
        if x.shape != shape:
            x = jax.image.resize(x, shape, "bilinear", antialias=False)
        x = (x - self.mean) / self.deviation
        x = nn.relu6(Scaled(name="norm")(_conv(STEM, 3, "conv", 2)(x)))
        number = 0
        for blocks, side, features, stride in STAGES:
            for place in range(blocks):
                number += 1
                block = Block(
                    side,
                    features,
                    1 if place else stride,
                    1 if number == 1 else WIDENING,
                    name=f"block{number}",
                )
                x = block(x)
        x = nn.relu6(Scaled(name="norm_last")(_conv(FEATURES, 1, "conv_last")(x)))
        x = x.mean((1, 2))
        if not self.classes:
            return x
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return nn.Dense(self.classes, kernel_init=SPREAD, name="dense")(x)


class Block(nn.Module):
    """A convolution of each channel, between two of single places, and a shortcut.

    Attributes:
      side: the side of the window.
      features: channels of the output.
      stride: the stride of the window; there is a shortcut if it is 1 and the number
        of channels stays.
      widening: how many times the channels of the input are inside; 1: there is no
        first convolution.
    """

    side: int
    features: int
    stride: int
    widening: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the block's output of `x`, both in NHWC order."""
        y, wide = x, x.shape[-1] * self.widening
        if self.widening > 1:
            y = nn.relu6(Scaled(name="norm1")(_conv(wide, 1, "conv1")(y)))
        y = _conv(wide, self.side, "conv2", self.stride, groups=wide)(y)
        y = _conv(self.features, 1, "conv3")(nn.relu6(Scaled(name="norm2")(y)))
        y = Scaled(name="norm3")(y)
        return x + y if x.shape == y.shape else y


class Scaled(nn.Module):
    """Channels, multiplied and shifted: normalisation by constant statistics."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns `x`, with its last axis scaled and shifted."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        return x * scale + bias


def _conv(
    features: int, side: int, name: str, stride: int = 1, groups: int = 1
) -> nn.Conv:
    return nn.Conv(
        features,
        (side, side),
        stride,
        feature_group_count=groups,
        use_bias=False,
        name=name,
    )
