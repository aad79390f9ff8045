"""Features are a data set like any other, and distinguish the classes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from experiments import features
from fl_sketch.data import npz
from fl_sketch.data.examples import Examples, Splits


def images(count, seed):
    """Returns squares that are brighter on the left (0) or on the right (1)."""
    random = np.random.default_rng(seed)
    targets = random.integers(0, 2, count, np.int32)
    inputs = random.integers(0, 100, (count, 8, 8, 1), np.uint8)
    for image, target in zip(inputs, targets, strict=True):
        image[:, 4 * target : 4 * target + 4] += 100
    return Examples(inputs, targets)


@pytest.mark.slow
def test_a_linear_model_of_features_distinguishes_the_classes(tmp_path):
    splits = Splits("squares", images(800, 0), images(100, 1), 2)
    train, test = features.by_small_network(splits, width=16, epochs=2)
    np.testing.assert_array_equal(train.targets, splits.train.targets[400:])
    npz.save(tmp_path / "squares.npz", train, test)
    with np.load(tmp_path / "squares.npz") as file:
        found = [file[f"{part}_{kind}"] for part in ("train", "test") for kind in KINDS]
    assert found[0].shape == (400, 16) and found[2].shape == (100, 16)
    assert (found[0] >= 0).all()  # after relu
    probe = LogisticRegression().fit(*found[:2])
    assert probe.score(*found[2:]) > 0.95


KINDS = ("inputs", "targets")


@pytest.mark.slow
def test_the_arrays_of_a_file_are_the_whole_efficientnet():
    """A unit variance and no mean leave scales as they are, but for epsilon."""
    x = jnp.zeros((1, 8, 8, 3))
    shapes = jax.eval_shape(features.EfficientNetLite0().init, jax.random.key(0), x)
    arrays = {}
    for conv, norm, block, end in features.layers():
        tree = shapes["params"]
        for name in block:
            tree = tree[name]
        height, width, inside, outside = tree[f"conv{end}"]["kernel"].shape
        arrays[f"{conv}.weight"] = np.ones((outside, inside, height, width))
        arrays[f"{norm}.weight"] = np.full(outside, 2.0)
        arrays[f"{norm}.bias"] = np.full(outside, 3.0)
        arrays[f"{norm}.running_mean"] = np.full(outside, 5.0)
        arrays[f"{norm}.running_var"] = np.full(outside, 4.0 - features.EPSILON)
    params = features.params_of(arrays)
    assert jax.tree.map(np.shape, params) == jax.tree.map(
        lambda leaf: leaf.shape, shapes["params"]
    )
    np.testing.assert_allclose(params["block3"]["norm2"]["scale"], 1.0)
    np.testing.assert_allclose(params["block3"]["norm2"]["bias"], -2.0)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 3_370_704 + 0
