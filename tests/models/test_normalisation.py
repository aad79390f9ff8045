"""Group normalisation is that of flax, in value and gradient."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.models.layers import NORMS, GroupNorm

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


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("of_parameters", [jnp.float32, None])
def test_short_numbers_are_added_up_as_flax_does(dtype, of_parameters):
    x = (20 + jax.random.normal(KEY, (2, 8, 8, 8))).astype(dtype)
    params = {"params": {"scale": jnp.full(8, 2.0), "bias": jnp.full(8, 0.5)}}
    params = jax.tree.map(lambda leaf: leaf.astype(of_parameters or dtype), params)
    ours, theirs = (g.apply(params, x) for g in (GroupNorm(2), nn.GroupNorm(2)))
    assert ours.dtype == theirs.dtype
    ours, theirs = (np.asarray(y, np.float32) for y in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, rtol=0.01, atol=0.02)


def test_no_images_are_no_images():
    assert GroupNorm(2).init_with_output(KEY, jnp.ones((0, 3, 3, 4)))[0].size == 0


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
