"""Convolutions of clients for GPUs, run by an interpreter, are those of XLA."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.fast import gpu, plain

# Images (examples, height, width, channels), a window, features, pads, strides.
CASES = {
    "one channel": ((3, 9, 8, 1), 5, 6, ((2, 2), (2, 2)), 1),
    "few channels": ((4, 14, 14, 6), 5, 16, ((0, 0), (0, 0)), 1),
    "whole pixels": ((2, 10, 10, 32), 3, 64, ((1, 1), (1, 1)), 1),
    "half a block": ((2, 8, 8, 16), 3, 20, ((1, 1), (1, 1)), 1),
    "strides": ((2, 10, 11, 5), 3, 7, ((1, 1), (0, 1)), 2),
    "strides of whole pixels": ((2, 9, 8, 64), 3, 16, ((1, 1), (0, 1)), 2),
    "windows apart": ((2, 8, 8, 3), 1, 5, ((0, 0), (0, 0)), 2),
}


def drawn(name):
    image, window, features, pads, strides = CASES[name]
    x = jax.random.normal(jax.random.key(0), (3, *image))
    shape = (3, window, window, image[-1], features)
    kernel = jax.random.normal(jax.random.key(1), shape)
    ours = functools.partial(gpu.convolve, pads=pads, strides=strides, interpret=True)
    theirs = functools.partial(plain.product, pads=pads, strides=strides)
    return x, kernel, ours, theirs


def with_gradients(convolve, axes):
    def of_client(x, kernel):
        y, backward = jax.vjp(convolve, x, kernel)
        return (y, *backward(jnp.ones_like(y) / 8))

    return jax.jit(jax.vmap(of_client, axes))


def assert_same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_clients_with_kernels_of_their_own(name):
    x, kernel, ours, theirs = drawn(name)
    results = [with_gradients(form, (0, 0))(x, kernel) for form in (ours, theirs)]
    assert_same(*results)


@pytest.mark.parametrize("name", ["one channel", "whole pixels"])
def test_clients_that_share_a_kernel(name):
    x, kernel, ours, theirs = drawn(name)
    results = [with_gradients(f, (0, None))(x, kernel[0]) for f in (ours, theirs)]
    assert_same(*results)


def test_points_of_a_sweep_batch_clients_again():
    x, kernel, ours, theirs = drawn("half a block")
    points = jnp.stack([kernel, 2 * kernel])
    results = [
        jax.vmap(with_gradients(form, (0, 0)), (None, 0))(x, points)
        for form in (ours, theirs)
    ]
    assert_same(*results)


def test_one_client_has_the_convolution_of_xla():
    x, kernel, ours, _ = drawn("whole pixels")
    alone = str(jax.make_jaxpr(ours)(x[0], kernel[0]))
    assert "conv_general_dilated" in alone and "pallas_call" not in alone
    assert "pallas_call" in str(jax.make_jaxpr(jax.vmap(ours))(x, kernel))


def test_pooled_outputs_are_maxima():
    x, kernel, _, theirs = drawn("few channels")
    pads, strides = CASES["few channels"][3:]
    pooled = gpu.convolve(x[0], kernel[0], pads, strides, pool=True, interpret=True)
    windows = theirs(x[0], kernel[0]).reshape(4, 5, 2, 5, 2, 16)
    np.testing.assert_allclose(pooled, windows.max((2, 4)), rtol=1e-5, atol=1e-5)
