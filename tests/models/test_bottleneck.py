"""A block of the ResNet of 101 layers begins as its shortcut, and leaves it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.models.bottleneck import Bottleneck
from fl_sketch.models.layers import NORMS

KEY = jax.random.key(0)


@pytest.mark.parametrize("norm", NORMS)
def test_a_block_begins_as_its_shortcut(norm):
    block, x = Bottleneck(8, 1, norm), jax.random.normal(KEY, (2, 4, 4, 32))
    model = block.init(KEY, x)
    np.testing.assert_array_equal(block.apply(model, x), nn.relu(x))

    def loss(params):
        return jnp.square(block.apply(model | {"params": params}, x)).sum()

    slopes = jax.grad(loss)(model["params"])
    assert np.abs(slopes["norm3"]["scale"]).min() > 0
    ones = jax.tree.map(jnp.ones_like, model["params"]["norm3"])
    moved = model["params"] | {"norm3": ones}
    assert np.abs(block.apply(model | {"params": moved}, x) - nn.relu(x)).max() > 0.1


@pytest.mark.parametrize("norm", NORMS)
def test_a_shortcut_that_follows_is_normalised_with_scales_of_one(norm):
    x = jax.random.normal(KEY, (2, 4, 4, 16))
    params = Bottleneck(8, 2, norm).init(KEY, x)["params"]
    norms = {name: own for name, own in params.items() if "scale" in own}
    ends = {name: float(own["scale"].mean()) for name, own in norms.items()}
    assert ends == {"norm1": 1, "norm2": 1, "norm3": 0, "norm4": 1}
