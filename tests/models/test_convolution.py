"""Convolutions and pools are those of XLA, in values and in gradients."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fl_sketch import models
from fl_sketch.models import convolution

ORDER = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}


def drawn(seed, shape):
    """Small whole numbers, often equal: their sums are exact in every order."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def of_xla(x, kernel, strides, padding, pool=False):
    y = lax.conv_general_dilated(x, kernel, strides, padding, **ORDER)
    return nn.max_pool(y, (2, 2), (2, 2)) if pool else y


def ours(x, kernel, strides, padding, pool=False):
    layer = models.conv_pool if pool else models.conv
    return layer(x, kernel, strides, padding, **ORDER)


def of_accelerators(x, kernel, strides, padding, pool=False):
    pads = convolution.zeros_around(x, kernel, strides, padding, ORDER)
    y = convolution.patches(x, kernel, pads=pads, strides=strides)
    return models.max_pool(y, (2, 2), (2, 2)) if pool else y


# Images, a window, features, strides, zeros around, whether with a pool.
CASES = [
    ((3, 9, 8, 3), (3, 3), 5, (1, 1), [(2, 0), (0, 1)], False),
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


@pytest.mark.slow
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


def test_clients_and_points_with_kernels_of_their_own_and_products_with_a_hessian():
    """Points of a sweep share the images of clients, as jax batches a layer twice."""
    xs, kernels = drawn(0, (3, 8, 8, 8, 3)), drawn(1, (2, 3, 3, 3, 3, 5))

    def slope(form, pool):
        def value(kernel, x):
            return jnp.sin(form(x, kernel, (1, 1), "SAME", pool)).sum()

        return jax.grad(value)

    def product(form):
        of_one = lambda kernel: slope(form, False)(kernel, xs[0])  # noqa: E731
        return jax.jvp(of_one, (kernels[0, 0],), (kernels[0, 0] / 8,))[1]

    @jax.jit
    def both():
        results = [(product(ours), product(of_xla))]
        for pool in (False, True):
            mapped = jax.vmap(jax.vmap(slope(ours, pool)), (0, None))(kernels, xs)
            plain = slope(of_xla, pool)
            pairs = [
                jnp.stack([plain(kernels[i, j], xs[j]) for j in range(3)])
                for i in range(2)
            ]
            results.append((mapped, jnp.stack(pairs)))
        return results

    for found, expected in both():
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_other_convolutions_are_those_of_xla_too():
    image, kernel = (2, 8, 8, 4), (3, 3, 4, 4)
    for x, k, strides, padding, options in [
        (image, (3, 3, 2, 4), (1, 1), "SAME", ORDER | {"feature_group_count": 2}),
        (image, kernel, (1, 1), "SAME", ORDER | {"rhs_dilation": (2, 2)}),
        (image, kernel, (1, 1), [(3, 0), (0, 0)], ORDER),
        ((2, 4, 8, 8), (4, 4, 3, 3), (1, 1), "SAME", {}),
        ((2, 4, 8), (4, 4, 3), (1,), "SAME", {}),
        ((0, 8, 8, 4), kernel, (1, 1), "SAME", ORDER),
    ]:
        arguments = drawn(0, x), drawn(1, k), strides, padding
        expected = lax.conv_general_dilated(*arguments, **options)
        np.testing.assert_array_equal(models.conv(*arguments, **options), expected)
    short = (jnp.bfloat16(drawn(0, image)), jnp.bfloat16(drawn(1, kernel)))
    found, expected = (form(*short, (1, 1), "SAME") for form in (ours, of_xla))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.astype(float), expected.astype(float))


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
