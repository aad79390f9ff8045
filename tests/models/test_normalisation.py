"""Group normalisation is that of flax, in value and gradient."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.models.normalisation import NORMS, GroupNorm

KEY = jax.random.key(0)


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_a_layer_is_that_of_flax(groups):
    x = 3 + jax.random.normal(KEY, (2, 5, 4, 8))
    layer, of_flax = GroupNorm(groups), nn.GroupNorm(groups)
    params = of_flax.init(KEY, x)
    jax.tree.map(np.testing.assert_array_equal, params, layer.init(KEY, x))
    params = jax.tree.map(lambda leaf: leaf + jnp.arange(8.0), params)

    def found(layer):
        def loss(params, x):
            y = layer.apply(params, x)
            return jnp.sin(y).sum(), y

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(params, x)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
        jax.jit(found, static_argnums=0)(layer),
        jax.jit(found, static_argnums=0)(of_flax),
    )


def test_equal_numbers_are_normalised_to_zero():
    x = jnp.full((2, 3, 3, 4), 1e3)
    np.testing.assert_array_equal(GroupNorm(2).init_with_output(KEY, x)[0], 0)


def test_channels_that_no_group_divides_have_fewer_groups():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return NORMS["group"](True, x, "norm", groups=8)

    x = jax.random.normal(KEY, (2, 3, 3, 12))
    y = Model().init_with_output(KEY, x)[0].reshape(2, 9, 4, 3)
    np.testing.assert_allclose(y.mean((1, 3)), 0, atol=1e-6)
