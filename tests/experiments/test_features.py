"""Features are a data set like any other, and distinguish the classes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import features


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
