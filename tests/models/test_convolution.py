"""Convolutions and pools are those of XLA, in values and in gradients."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from fl_sketch import models
from fl_sketch.models import convolution

ORDER = ("NHWC", "HWIO", "NHWC")


def drawn(seed, shape):
    """Small whole numbers, often equal: their sums are exact in every order."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def of_xla(x, kernel, strides, padding, pool=False):
    order = {"dimension_numbers": ORDER}
    y = lax.conv_general_dilated(x, kernel, strides, padding, **order)
    return nn.max_pool(y, (2, 2), (2, 2)) if pool else y


def ours(x, kernel, strides, padding, pool=False):
    layer = models.conv_pool if pool else models.conv
    return layer(x, kernel, strides, padding, dimension_numbers=ORDER)


def of_accelerators(x, kernel, strides, padding, pool=False):
    order = {"dimension_numbers": ORDER}
    pads = convolution.zeros_around(x, kernel, strides, padding, order)
    y = convolution.patches(x, kernel, pads=pads, strides=strides)
    return models.max_pool(y, (2, 2), (2, 2)) if pool else y


# Images, a window, features, strides, zeros around, whether with a pool.
CASES = [
    ((3, 9, 8, 3), (3, 3), 5, (1, 1), "SAME", False),
    ((2, 7, 8, 20), (5, 3), 17, (1, 1), "VALID", False),
    ((2, 6, 6, 4), (1, 1), 6, (1, 1), "VALID", False),
    ((3, 9, 8, 3), (3, 3), 5, (2, 2), "SAME", False),
    ((2, 9, 8, 3), (1, 1), 5, (2, 1), "VALID", False),
    ((2, 8, 8, 3), (4, 4), 5, (3, 2), [(2, 1), (0, 3)], False),
    ((8, 8, 8, 1), (5, 5), 6, (1, 1), "SAME", True),  # by windows
    ((9, 11, 8, 6), (5, 2), 7, (1, 1), [(1, 0), (1, 1)], True),
    ((2, 8, 8, 6), (5, 5), 7, (1, 1), "SAME", True),  # few examples
    ((6, 9, 8, 32), (3, 3), 64, (1, 1), "SAME", True),  # Winograd's products
    ((8, 8, 8, 3), (3, 3), 5, (2, 2), "SAME", True),
]


def with_gradients(form, case, x, kernel):
    """Returns a layer's output with a relu, and both gradients of a sum of it."""
    strides, padding, pool = case[3:]

    def value(x, kernel):
        return nn.relu(form(x, kernel, strides, padding, pool))

    y, backward = jax.vjp(value, x, kernel)
    weights = jnp.arange(y.size, dtype=jnp.float32).reshape(y.shape) % 7 - 3
    return (y, *backward(weights))


def test_values_and_gradients_are_those_of_xla_also_of_equal_numbers():
    """Exactly, since all sums are: a relu of zero and the first of equal maxima too."""

    @jax.jit
    def computed(operands):
        return [
            [with_gradients(f, case, *pair) for f in (of_xla, ours, of_accelerators)]
            for case, pair in zip(CASES, operands, strict=True)
        ]

    operands = [
        (drawn(0, image), drawn(1, (*window, image[-1], features)))
        for image, window, features, *_ in CASES
    ]
    for case, results in zip(CASES, computed(operands), strict=True):
        expected, *forms = results
        for found in forms:
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other, err_msg=str(case))


def test_clients_and_points_with_kernels_of_their_own():
    """Points of a sweep share the images of clients, as jax batches a layer twice."""
    xs, kernels = drawn(0, (3, 8, 8, 8, 3)), drawn(1, (2, 3, 3, 3, 3, 5))

    def gradient(form, pool, kernel, x):
        def value(kernel):
            return jnp.sin(form(x, kernel, (1, 1), "SAME", pool)).sum()

        return jax.grad(value)(kernel)

    @jax.jit
    def both(xs, kernels):
        results = []
        for pool in (False, True):
            ours_, plain = (
                functools.partial(gradient, f, pool) for f in (ours, of_xla)
            )
            mapped = jax.vmap(jax.vmap(ours_), (0, None))(kernels, xs)
            by_point = lambda point: lax.map(lambda c: plain(*c), (point, xs))  # noqa: B023, E731
            results.append((mapped, lax.map(by_point, kernels)))
        return results

    for found, expected in both(xs, kernels):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_what_is_left_to_xla():
    def traced(layer, x, kernel, *arguments, **options):
        def computed(x, kernel):
            return layer(x, kernel, *arguments, **options)

        return str(jax.make_jaxpr(computed)(jnp.ones(x), jnp.ones(kernel)))

    image, order = (2, 8, 8, 4), {"dimension_numbers": ORDER}
    for left in [
        (image, (3, 3, 2, 4), (1, 1), "SAME", order | {"feature_group_count": 2}),
        (image, (3, 3, 4, 4), (1, 1), "SAME", order | {"rhs_dilation": (2, 2)}),
        (image, (3, 3, 4, 4), (1, 1), [(3, 0), (0, 0)], order),
        ((2, 4, 8, 8), (4, 4, 3, 3), (1, 1), "SAME", {}),
        ((2, 4, 8), (4, 4, 3), (1,), "SAME", {}),
        ((0, 8, 8, 4), (3, 3, 4, 4), (1, 1), "SAME", order),
    ]:
        *arguments, options = left
        found, expected = (
            traced(layer, *arguments, **options)
            for layer in (models.conv, lax.conv_general_dilated)
        )
        assert found == expected


def test_pools_are_those_of_flax():
    x = drawn(0, (2, 7, 6, 3))
    x[0, 0, 0, 0] = np.nan
    for window, strides, padding in [
        ((2, 2), (2, 2), "VALID"),
        ((2, 2), None, "VALID"),
        ((3, 2), (2, 2), "SAME"),
    ]:
        for images in (x, x[0]):
            found, expected = (
                pool(images, window, strides, padding)
                for pool in (models.max_pool, nn.max_pool)
            )
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("case", [CASES[3], CASES[6], CASES[9]], ids=str)
def test_forward_differentiation(case):
    image, window, features, *rest = case
    x, kernel = drawn(0, image), drawn(1, (*window, image[-1], features))

    @jax.jit
    def both(x, kernel):
        def along(form):
            value = lambda x, kernel: form(x, kernel, *rest)  # noqa: E731
            return jax.jvp(value, (x, kernel), (x, kernel))

        return along(ours), along(of_xla)

    found, expected = both(x, kernel)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_products_with_a_hessian():
    x, kernel = drawn(0, (2, 6, 6, 3)), drawn(1, (3, 3, 3, 5)) / 8

    def product(form):
        def slope(kernel):
            of = lambda k: jnp.sin(form(x, k, (1, 1), "SAME")).sum()  # noqa: E731
            return jax.grad(of)(kernel)

        return jax.jvp(slope, (kernel,), (kernel,))[1]

    found, expected = jax.jit(lambda: (product(ours), product(of_xla)))()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_layers_of_flax_take_them():
    x = drawn(0, (8, 8, 8, 3))
    plain = nn.Conv(5, (3, 3))
    params = plain.init(jax.random.key(0), x)
    expected = nn.max_pool(nn.relu(plain.apply(params, x)), (2, 2), (2, 2))
    linen = nn.Conv(5, (3, 3), conv_general_dilated=models.conv_pool)
    layer = nnx.Conv(
        3, 5, (3, 3), conv_general_dilated=models.conv_pool, rngs=nnx.Rngs(0)
    )
    layer.kernel[...] = params["params"]["kernel"]
    for found in (linen.apply(params, x), layer(x)):
        np.testing.assert_allclose(nn.relu(found), expected, rtol=1e-5, atol=1e-5)


def test_short_floats():
    x, kernel = (drawn(n, s) for n, s in enumerate([(2, 6, 6, 3), (3, 3, 3, 4)]))
    found, expected = (
        form(*(jnp.bfloat16(a) for a in (x, kernel)), (1, 1), "SAME")
        for form in (ours, of_xla)
    )
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.astype(float), expected.astype(float))
