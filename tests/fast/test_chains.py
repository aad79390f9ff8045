"""A convolution, its bias, its relu and its pool become one, where they may."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.fast.watching import Watched, assert_agree, floats

TOGETHER, APART = ["convolve pooled"], ["convolve", "max_pool"]


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


def convolved(x, kernel, strides=1, order=("NHWC", "HWIO", "NHWC")):
    steps = strides, strides
    return lax.conv_general_dilated(x, kernel, steps, "SAME", dimension_numbers=order)


def pool(x, window=(2, 2), **options):
    return nn.max_pool(x, window, options.pop("strides", window), **options)


def along(axes, x):
    """Returns maxima of windows of 2x2 along two axes."""
    window = [2 if axis in axes else 1 for axis in range(x.ndim)]
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")


def usual(x, kernel, bias):
    return pool(nn.relu(convolved(x, kernel) + bias))


def pool_first(x, kernel, bias):
    return nn.relu(pool(convolved(x, kernel) + bias))


def pool_before_bias(x, kernel, bias):
    return nn.relu(pool(convolved(x, kernel)) + bias)


def written_out(x, kernel, bias):
    y = convolved(x, kernel)
    return pool(jnp.maximum(lax.broadcast_in_dim(bias, y.shape, (3,)) + y, 0.0))


def smooth(x, kernel, bias):
    return pool(jnp.tanh(bias + convolved(x, kernel)))


def only_pool(x, kernel, bias):
    return pool(convolved(x, kernel)) * bias


def threshold_of_channels(x, kernel, bias):
    return pool(lax.max(convolved(x, kernel), bias.reshape(1, 1, 1, -1)))


def one_bias(x, kernel, bias):
    return pool(convolved(x, kernel) + bias[0])


def channels_first(x, kernel, bias):
    x, kernel = x.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1)
    y = convolved(x, kernel, order=("NCHW", "OIHW", "NCHW")) + bias[:, None, None]
    return along((2, 3), nn.relu(y))


def moved(x, kernel, bias):
    y = jnp.expand_dims(convolved(x, kernel) + bias, 1)
    y = jnp.squeeze(nn.relu(y), 1).transpose(3, 0, 1, 2)
    return along((3, 4), lax.broadcast_in_dim(y, (1, *y.shape), (1, 2, 3, 4)))


@pytest.mark.parametrize(
    "function",
    [usual, pool_first, pool_before_bias, written_out, smooth, only_pool, one_bias]
    + [threshold_of_channels, channels_first, moved],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize("size", [(8, 8), (7, 9)])
@pytest.mark.parametrize("channels", [3, 16])
def test_steps_that_keep_the_order_go_with_the_pool(function, size, channels, watched):
    x, kernel = floats((8, *size, channels)), floats((3, 3, channels, 5), 1) / 3
    bias = floats(5, 2)
    assert watched.of(function, x, kernel, bias) == TOGETHER
    assert_agree(function, x, kernel, bias)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_short_types_are_pooled_before_relu_too(dtype, watched):
    layer = floats((3, 8, 8, 3)), floats((3, 3, 3, 5), 1), floats(5, 2)
    layer = [jnp.asarray(a, dtype) for a in layer]
    assert watched.of(usual, *layer) == TOGETHER
    assert_agree(usual, *layer, tolerance=0.1)


def read_twice(x, kernel, bias):
    y = convolved(x, kernel) + bias
    return pool(nn.relu(y)), y.mean()


def read_by_the_caller(x, kernel, bias):
    y = nn.relu(convolved(x, kernel) + bias)
    return pool(y), y


def added_to_itself(x, kernel, bias):
    y = convolved(x, kernel)
    return pool(y + y) * bias


def shortcut(x, kernel, bias):
    return pool(convolved(x, kernel) + x[..., :1] + bias)


def bias_of_places(x, kernel, bias):
    return pool(convolved(x, kernel) + bias + x[:1, :, :1, :1])


def bias_of_rows(x, kernel, bias):
    y = convolved(x, kernel)
    return pool(lax.broadcast_in_dim(x[0, :, 0, 0], y.shape, (1,)) + y) * bias


def scaled(x, kernel, bias):
    return pool(nn.relu(bias * convolved(x, kernel)))


def negative(x, kernel, bias):
    return pool(-convolved(x, kernel)) + bias


def with_strides(x, kernel, bias):
    return pool(convolved(x, kernel, 2) + bias)


def other_axes(x, kernel, bias):
    return along((1, 3), nn.relu(convolved(x, kernel) + bias))


def turned(x, kernel, bias):
    return along((1, 2), (convolved(x, kernel) + bias).transpose(0, 2, 1, 3))


def rearranged(x, kernel, bias):
    y = convolved(x, kernel) + bias
    return along((1, 2), y.reshape(len(x), y.shape[1] * 2, -1, y.shape[3]))


def repeated(x, kernel, bias):
    y = convolved(x, kernel) + bias
    return along((2, 3), lax.broadcast_in_dim(y, (2, *y.shape), (1, 2, 3, 4)))


@jax.custom_jvp
def straight_through(x):
    return jnp.maximum(x, 0)


straight_through.defjvps(lambda slope, y, x: slope)


def own_rule(x, kernel, bias):
    return pool(straight_through(convolved(x, kernel) + bias))


@pytest.mark.parametrize(
    "function",
    [
        read_twice,
        read_by_the_caller,
        added_to_itself,
        shortcut,
        bias_of_places,
        bias_of_rows,
    ]
    + [
        scaled,
        negative,
        with_strides,
        other_axes,
        turned,
        rearranged,
        repeated,
        own_rule,
    ],
    ids=lambda function: function.__name__,
)
def test_others_stay_between_the_two(function, watched):
    x, kernel, bias = floats((3, 8, 8, 3)), floats((3, 3, 3, 5), 1), floats(5, 2)
    assert watched.of(function, x, kernel, bias) == APART
    assert_agree(function, x, kernel, bias)


def overlapping(x, kernel, bias):
    return pool(convolved(x, kernel) + bias, strides=(1, 1))


def of_three(x, kernel, bias):
    return pool(nn.relu(convolved(x, kernel) + bias), (3, 3))


@pytest.mark.parametrize("function", [overlapping, of_three])
def test_other_pools_stay_behind_the_convolution(function, watched):
    x, kernel, bias = floats((3, 8, 8, 3)), floats((3, 3, 3, 5), 1), floats(5, 2)
    assert watched.of(function, x, kernel, bias) == ["convolve"]
    assert_agree(function, x, kernel, bias)


@pytest.mark.parametrize("function", [usual, pool_first, pool_before_bias])
def test_ties_give_to_the_first(function):
    """Numbers are whole, so that all forms but one are exact, and many are equal."""
    x = np.random.default_rng(0).integers(-1, 2, (8, 8, 8, 1)).astype(np.float32)
    kernel, bias = np.ones((2, 2, 1, 3), np.float32), np.float32([-1, 0, 1])
    assert_agree(function, x, kernel, bias)


def test_each_of_several_layers_gets_its_own(watched):
    def net(x, *layers):
        for kernel, bias in layers:
            x = usual(x, kernel, bias)
        return x

    layers = [(floats((3, 3, 3, 4), 1), floats(4)), (floats((3, 3, 4, 2)), floats(2))]
    assert watched.of(net, floats((8, 12, 12, 3)), *layers) == 2 * TOGETHER
    assert_agree(net, floats((8, 12, 12, 3)) / 9, *layers)
