"""Features are a data set like any other, and distinguish the classes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from experiments import features
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
def test_a_linear_model_of_features_distinguishes_the_classes():
    splits = Splits("squares", images(800, 0), images(100, 1), 2)
    train, test = features.by_small_network(splits, width=16, epochs=2)
    np.testing.assert_array_equal(train.targets, splits.train.targets[400:])
    assert train.inputs.shape == (400, 16) and test.inputs.shape == (100, 16)
    assert (train.inputs >= 0).all()  # after relu
    assert LogisticRegression().fit(*train).score(*test) > 0.95


def test_the_arrays_of_a_file_are_the_whole_efficientnet():
    x = jnp.zeros((1, 8, 8, 3))
    shapes = jax.eval_shape(features.EfficientNetLite0().init, jax.random.key(0), x)
    arrays = {}
    statistics = {"weight": 2, "bias": 3, "running_mean": 5, "running_var": 4 - 1e-3}
    for conv, norm, block, end in features.layers():
        tree = shapes["params"]
        for name in block:
            tree = tree[name]
        height, width, inside, outside = tree[f"conv{end}"]["kernel"].shape
        arrays[f"{conv}.weight"] = np.ones((outside, inside, height, width))
        for name, value in statistics.items():
            arrays[f"{norm}.{name}"] = np.full(outside, value)
    params = features.params_of(arrays)
    shapes = jax.tree.map(jnp.shape, shapes["params"])
    assert jax.tree.map(np.shape, params) == shapes
    norm = params["block3"]["norm2"]  # 2 (x - 5) / 2 + 3
    assert norm["scale"] == pytest.approx(1) and norm["bias"] == pytest.approx(-2)
