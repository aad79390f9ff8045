"""Dense layers are those of flax, in value and gradient."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.models.cpu.dense import FEW
from fl_sketch.models.layers import ByClass, Dense

KEY = jax.random.key(0)


@pytest.mark.parametrize("rows", [0, 1, 2, FEW, FEW + 1, (3, FEW)])
@pytest.mark.parametrize("features", [5, 9])
def test_a_layer_is_that_of_flax(rows, features):
    x = jax.random.normal(KEY, (*np.atleast_1d(rows), 7))
    layer, of_flax = Dense(features), nn.Dense(features)
    params = of_flax.init(KEY, x)
    jax.tree.map(np.testing.assert_array_equal, params, layer.init(KEY, x))

    def found(layer):
        def loss(params, x):
            return jnp.sin(layer.apply(params, x)).sum()

        gradient = jax.grad(loss, argnums=(0, 1))
        curved = jax.jvp(lambda p: gradient(p, x)[0], (params,), (params,))[1]
        return gradient(params, x), curved

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        jax.jit(found, static_argnums=0)(layer),
        jax.jit(found, static_argnums=0)(of_flax),
    )


@pytest.mark.parametrize("rows", [2, FEW + 1])
def test_gradients_have_the_types_of_what_they_are_of(rows):
    x = jnp.ones((rows, 7), jnp.bfloat16)
    layer = Dense(5)
    params = layer.init(KEY, x)
    found = jax.grad(lambda p, x: layer.apply(p, x).sum(), (0, 1))(params, x)
    types = [jax.tree.map(lambda leaf: leaf.dtype, of) for of in (found, (params, x))]
    assert types[0] == types[1]


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_accelerators_get_a_product(platform):
    x = jnp.ones((4, 7))
    layer = Dense(5)
    params = layer.init(KEY, x)
    gradient = jax.jit(jax.grad(lambda p: layer.apply(p, x).sum())).trace(params)
    text = gradient.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("dot_general") == 1
    assert "dot_general" not in gradient.lower(lowering_platforms=("cpu",)).as_text()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_accelerators_turn_no_logits(platform):
    layer, x = ByClass(5), jnp.ones((4, 7))
    params = layer.init(KEY, x)
    traced = jax.jit(layer.apply).trace(params, x)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert "optimization_barrier" not in text
    text = traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "optimization_barrier" in text
