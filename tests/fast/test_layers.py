"""Which single layers of any function are put in, and that values stay the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fl_sketch import fast
from tests.fast.watching import Watched, assert_agree, assert_untouched, floats

ORDERS = [
    ("NHWC", "HWIO", "NHWC"),
    ("NCHW", "OIHW", "NCHW"),
    ("NCHW", "HWIO", "NHWC"),
    ("CHWN", "IHWO", "HWNC"),
    ("NWHC", "WHIO", "CWHN"),
]
SIZES = {"N": 2, "H": 7, "W": 9, "C": 3, "I": 3, "O": 4}


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


def layer(order, window=(3, 2), **options):
    """Returns a convolution of (x, kernel), and both."""
    strides = options.pop("window_strides", (1, 1))
    padding = options.pop("padding", "SAME")

    def convolved(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, strides, padding, dimension_numbers=order, **options
        )

    sizes = SIZES | {"I": SIZES["I"] // options.get("feature_group_count", 1)}
    x = floats([sizes[axis] for axis in order[0]])
    sizes |= dict(zip("HW", window, strict=True))
    return convolved, x, floats([sizes[axis] for axis in order[1]], 1)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize(
    ("strides", "padding"),
    [(1, "SAME"), (2, "SAME"), (2, "VALID"), (3, [(1, 0), (0, 1)])],
)
def test_a_convolution_of_any_order_of_axes_is_put_in(order, strides, padding, watched):
    options = {"window_strides": (strides, strides), "padding": padding}
    function, *arguments = layer(order, **options)
    assert watched.of(function, *arguments) == ["convolve"]
    assert_agree(function, *arguments)


@pytest.mark.parametrize(
    "options",
    [
        {"feature_group_count": 3},  # and two kernels for each channel
        {"lhs_dilation": (2, 1), "padding": [(1, 1), (0, 1)]},
        {"rhs_dilation": (1, 2)},
        {"window_strides": (1, 2)},
        {"padding": [(-1, 0), (0, 0)]},
        {"padding": [(3, 0), (0, 0)]},
        {"window": (12, 3), "padding": [(5, 6), (1, 1)]},
        {"padding": [(0, 0), (0, 0)], "window": (8, 2)},
    ],
    ids=str,
)
def test_other_convolutions_stay(options):
    function, x, kernel = layer(ORDERS[0], **options)
    if options.get("feature_group_count"):
        kernel = floats([3, 2, 1, 6])
    assert_untouched(function, x, kernel)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize(
    ("strides", "padding"),
    [(1, "SAME"), (2, "SAME"), (2, "VALID"), (3, [(1, 0), (0, 1)])],
)
def test_a_convolution_of_each_channel_is_put_in(order, strides, padding, watched):
    options = {"window_strides": (strides, strides), "padding": padding}
    function, x, kernel = layer(order, feature_group_count=3, **options)
    outputs = order[1].index("O")
    kernel = np.take(kernel, range(3), axis=outputs)
    assert watched.of(function, x, kernel) == ["depthwise"]
    assert_agree(function, x, kernel)


def test_convolutions_of_other_ranks_and_types_stay():
    def line(x, kernel):
        return lax.conv_general_dilated(x, kernel, (1,), "SAME")

    assert_untouched(line, floats((2, 3, 9)), floats((4, 3, 3)))
    function, *arguments = layer(ORDERS[0])
    assert_untouched(function, *(a.astype(np.int32) for a in arguments))
    short = [jnp.asarray(a, jnp.bfloat16) for a in arguments]
    wider, *_ = layer(ORDERS[0], preferred_element_type=jnp.float32)
    assert_untouched(wider, *short)


def test_short_types_get_the_plain_convolution_that_can_be_batched_twice(watched):
    function, x, kernel = layer(ORDERS[0])
    x, kernel = (jnp.asarray(a, jnp.bfloat16) for a in (x, kernel))
    assert watched.of(function, x, kernel) == ["convolve"]
    text = str(jax.make_jaxpr(fast.form(function))(x, kernel))
    assert "platform_index" not in text and "conv_general_dilated" in text

    def gradient(kernel, x):
        return jax.grad(lambda k: fast.form(function)(x, k).sum())(kernel)

    twice = jax.vmap(jax.vmap(gradient), (0, None))
    kernels = jnp.stack([jnp.stack([kernel] * 2)] * 3)
    assert jax.eval_shape(twice, kernels, jnp.stack([x, x])).shape == kernels.shape


@pytest.mark.parametrize("precision", [None, "highest"])
def test_accelerators_keep_the_precision_of_a_convolution(precision):
    function, *arguments = layer(ORDERS[0], precision=precision)
    traced = jax.jit(fast.form(function)).trace(*arguments)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert ("HIGHEST" in text) == (precision is not None)


def pooled(window, strides, padding):
    def run(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)

    return run


@pytest.mark.parametrize(
    ("shape", "window", "padding"),
    [
        ((2, 6, 8, 3), (1, 2, 2, 1), "VALID"),
        ((2, 6, 8, 3), (1, 2, 2, 1), "SAME"),
        ((2, 3, 5, 7), (1, 1, 2, 2), "VALID"),
        ((4, 3, 6), (2, 1, 2), "VALID"),
    ],
)
def test_a_pool_of_2x2_is_put_in(shape, window, padding, watched):
    function, x = pooled(window, window, padding), floats(shape)
    assert watched.of(function, x) == ["max_pool"]
    assert_agree(function, x)
    assert_agree(function, np.round(x))  # ties


@pytest.mark.parametrize(
    ("window", "strides", "padding"),
    [
        ((1, 2, 2, 1), (1, 1, 1, 1), "VALID"),
        ((1, 2, 2, 1), (1, 2, 2, 1), "SAME"),
        ((1, 3, 3, 1), (1, 3, 3, 1), "VALID"),
        ((1, 2, 2, 2), (1, 2, 2, 2), "VALID"),
        ((1, 2, 1, 1), (1, 2, 1, 1), "VALID"),
        ((1, 2, 4, 1), (1, 2, 4, 1), "VALID"),
    ],
)
def test_other_pools_stay(window, strides, padding):
    assert_untouched(pooled(window, strides, padding), floats((2, 7, 8, 4)))


def test_pools_of_whole_numbers_and_of_sums_stay():
    window = (1, 2, 2, 1)

    def sums(x):
        return lax.reduce_window(x, 0.0, lax.add, window, window, "VALID")

    def largest(x):
        return lax.reduce_window(x, jnp.int32(-9), lax.max, window, window, "VALID")

    assert_untouched(sums, floats((2, 6, 6, 1)))
    assert_untouched(largest, np.ones((2, 6, 6, 1), np.int32))


LARGE = (1024, 256)


@pytest.mark.parametrize(
    ("x", "kernel", "put_in"),
    [
        ((5, 1024), LARGE, True),
        ((2, 3, 8), (8, 4), True),
        ((1, 2, 3, 8), (8, 4), True),
        ((2, 0, 8), (8, 4), True),
        ((5, 8), (8, 4), False),
        ((1024,), LARGE, False),
        ((2, 3, 8), (8, 4, 2), False),
    ],
)
def test_dense_layers_are_put_in_where_that_is_faster(x, kernel, put_in, watched):
    def dense(x, kernel):
        return lax.dot_general(x, kernel, (((len(x.shape) - 1,), (0,)), ((), ()))) / 30

    arguments = floats(x), floats(kernel, 1)
    if put_in:
        assert watched.of(dense, *arguments) == ["product"]
        assert_agree(dense, *arguments)
    else:
        assert_untouched(dense, *arguments)


@pytest.mark.parametrize(
    ("sums", "batches", "options"),
    [
        (((2,), (1,)), ((), ()), {}),
        (((1,), (0,)), ((), ()), {}),
        (((2,), (0,)), ((), ()), {"precision": "highest"}),
        (((2,), (0,)), ((0,), (1,)), {}),
    ],
)
def test_other_products_stay(sums, batches, options):
    def dense(x, kernel):
        return lax.dot_general(x, kernel, (sums, batches), **options)

    assert_untouched(dense, floats((6, 6, 6)), floats((6, 6), 1))


def test_products_of_other_types_stay():
    dense = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)
    short = jnp.ones((2, 3, 8), jnp.bfloat16), jnp.ones((8, 4), jnp.bfloat16)
    assert_untouched(dense, *short)
