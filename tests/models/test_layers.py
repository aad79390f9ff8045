"""Layers of our own are flax's, in value and gradient."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.models.layers import NORMS, ByClass, GroupNorm
from tests.channels.rounds import quickly

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("layer", "of_flax", "shape"),
    [
        *((GroupNorm(n), nn.GroupNorm(n), (2, 5, 4, 8)) for n in (1, 2, 8)),
        (GroupNorm(2), nn.GroupNorm(2), (0, 3, 3, 4)),
    ],
)
def test_a_layer_is_that_of_flax(layer, of_flax, shape):
    x = 3 + jax.random.normal(KEY, shape)
    params = of_flax.init(KEY, x)
    jax.tree.map(np.testing.assert_array_equal, params, layer.init(KEY, x))
    params = jax.tree.map(lambda leaf: leaf + jnp.arange(1.0 * leaf.shape[-1]), params)

    def computed(layer, params, x):
        def loss(params, x):
            y = layer.apply(params, x)
            return jnp.sin(y).sum(), y

        gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
        curved = jax.jvp(lambda p: gradient(p, x)[0][0], (params,), (params,))[1]
        return gradient(params, x), curved

    ours, theirs = (
        quickly(functools.partial(computed, of))(params, x) for of in (layer, of_flax)
    )
    close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3)
    jax.tree.map(close, ours, theirs)


def test_accelerators_get_plain_products():
    layer, x = ByClass(5), jnp.ones((4, 7))
    params = layer.init(KEY, x)
    for function in (layer.apply, jax.grad(lambda p, x: layer.apply(p, x).sum())):
        traced = jax.jit(function).trace(params, x)
        for platform in ("cuda", "tpu"):
            text = traced.lower(lowering_platforms=(platform,)).as_text()
            assert text.count("dot_general") == 1
            assert "optimization_barrier" not in text


def test_cpus_get_logits_by_class():
    layer, x = ByClass(5), jnp.ones((4, 7))
    params = layer.init(KEY, x)
    traced = jax.jit(layer.apply).trace(params, x)
    text = traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "optimization_barrier" in text


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


class Normalised(nn.Module):
    kind: str = "group"
    train: bool = True

    @nn.compact
    def __call__(self, x):
        return NORMS[self.kind](self.train, x, "norm", groups=8)


def test_statistics_of_batches_move_by_a_tenth_in_training_and_serve_afterwards():
    x = 3 + jax.random.normal(KEY, (16, 2, 2, 4))
    trained, measured = Normalised("batch"), Normalised("batch", train=False)
    variables = trained.init(KEY, x)
    y, moved = trained.apply(variables, x, mutable=["batch_stats"])
    np.testing.assert_allclose(y.mean((0, 1, 2)), 0, atol=1e-5)
    mean, var = (moved["batch_stats"]["norm"][name] for name in ("mean", "var"))
    np.testing.assert_allclose(mean, 0.1 * x.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(var, 0.9 + 0.1 * x.var((0, 1, 2)), rtol=1e-5)
    after = measured.apply(variables | moved, x)
    np.testing.assert_allclose(after, (x - mean) / np.sqrt(var + 1e-5), rtol=1e-4)


def test_channels_that_no_group_divides_have_fewer_groups():
    x = jax.random.normal(KEY, (2, 3, 3, 12)).at[1].set(1e3)
    y, _ = Normalised().init_with_output(KEY, x)
    np.testing.assert_allclose(y.reshape(2, 9, 4, 3).mean((1, 3)), 0, atol=1e-6)
    np.testing.assert_array_equal(y[1], 0)  # all numbers are equal
