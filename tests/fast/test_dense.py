"""The product of rows is the plain one, in value and gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.fast.cpu.dense import FEW
from fl_sketch.fast.forms import product
from tests.channels.rounds import quickly


@pytest.mark.parametrize(
    ("rows", "inputs", "features"),
    [*((rows, 7, 5) for rows in (0, 1, 2, FEW, FEW + 1, 3 * FEW)), (FEW + 1, 50, 3)],
)
def test_the_product_is_the_plain_one(rows, inputs, features):
    draw = jax.random.normal
    x = draw(jax.random.key(0), (rows, inputs))
    kernel = draw(jax.random.key(1), (inputs, features))

    def computed(product, x, kernel):
        def loss(x, kernel):
            y = product(x, kernel)
            return jnp.sin(y).sum(), y

        gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
        curved = jax.jvp(lambda k: gradient(x, k)[0][0], (kernel,), (kernel,))[1]
        return gradient(x, kernel), curved

    ours, plain = (
        quickly(functools.partial(computed, of))(x, kernel)
        for of in (product, jnp.matmul)
    )
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(close, ours, plain)


def lowered(platform):
    x, kernel = jnp.ones((4, 7)), jnp.ones((7, 5))
    gradient = jax.grad(lambda kernel: product(x, kernel).sum())
    traced = jax.jit(gradient).trace(kernel)
    return traced.lower(lowering_platforms=(platform,)).as_text()


def test_cpus_get_sums_of_outer_products():
    assert "dot_general" not in lowered("cpu")


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_accelerators_get_the_plain_product(platform):
    assert lowered(platform).count("dot_general") == 1
