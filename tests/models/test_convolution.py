"""Every form of a convolution is lax's, in value and gradient; and so is the pool."""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from fl_sketch.models import (
    Conv,
    PooledConv,
    convolution,
    convolve,
    convolve_and_pool,
    max_pool,
)
from tests.channels.rounds import quickly

KEY = jax.random.key(0)


def plain(x, kernel, strides, padding):
    return lax.conv_general_dilated(
        x,
        kernel,
        (strides, strides),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def ours(x, kernel, strides, padding):
    return convolve(x, kernel, strides=strides, padding=padding)


def window_max(x):
    window = (1, 2, 2, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")


def plain_pooled(x, kernel, strides, padding):
    return window_max(plain(x, kernel, strides, padding))


def ours_pooled(x, kernel, strides, padding):
    assert strides == 1
    return convolve_and_pool(x, kernel, padding=padding)


def draw(*shapes):
    normal = np.random.default_rng(0).normal
    return [normal(size=shape).astype(np.float32) for shape in shapes]


def with_gradients(form, strides, padding):
    """Returns (x, kernel) -> (output, dx, dkernel) for a fixed random cotangent."""

    def run(x, kernel):
        y, vjp = jax.vjp(lambda x, k: form(x, k, strides, padding), x, kernel)
        cotangent = np.random.default_rng(9).normal(size=y.shape)
        return y, *vjp(jnp.asarray(cotangent, y.dtype))

    return run


def assert_close(got, expected, tolerance=1e-5):
    for ours, lax_s in zip(got, expected, strict=True):
        assert ours.shape == lax_s.shape and ours.dtype == lax_s.dtype
        ours, lax_s = (np.asarray(a, np.float64) for a in (ours, lax_s))
        scale = max(np.abs(lax_s).max(initial=0), 1)
        np.testing.assert_allclose(ours, lax_s, atol=tolerance * scale)


sizes = st.integers(1, 9)
layers = st.fixed_dictionaries(
    {
        "image": st.tuples(st.sampled_from([1, 2, 3, 8]), sizes, sizes),
        "window": st.just((3, 3)) | st.tuples(st.integers(1, 5), st.integers(1, 5)),
        "channels": st.sampled_from([1, 2, 3, 16, 17]),
        "features": st.sampled_from([1, 3, 8, 128]),
        "strides": st.sampled_from([1, 1, 2, 3]),
        "padding": st.sampled_from(["SAME", "VALID"]),
        "pool": st.booleans(),
    }
)


@hypothesis.settings(max_examples=14, deadline=None, derandomize=True)
@hypothesis.given(layers)
def test_any_layer_equals_lax_in_value_and_gradients(layer):
    window, padding, pool = layer["window"], layer["padding"], layer["pool"]
    outputs = np.array(layer["image"][1:])
    if padding == "VALID":
        outputs = outputs - window + 1
    hypothesis.assume(outputs.min() > pool)
    strides = 1 if pool else layer["strides"]
    both_forms = (ours_pooled, plain_pooled) if pool else (ours, plain)
    x, kernel = draw(
        (*layer["image"], layer["channels"]),
        (*window, layer["channels"], layer["features"]),
    )

    @quickly
    def both(x, kernel):
        return [
            with_gradients(form, strides, padding)(x, kernel) for form in both_forms
        ]

    assert_close(*both(x, kernel))


# (image, channels, kernel, features, strides, padding), one for every path.
PATHS = {
    "banded": ((2, 8, 8), 3, (3, 3), 5, 1, "SAME"),
    "banded with strides": ((2, 9, 9), 2, (3, 3), 5, 2, "SAME"),
    "canonical": ((2, 6, 6), 16, (3, 3), 17, 1, "SAME"),
    "pairs": ((2, 6, 6), 16, (3, 3), 4, 1, "SAME"),
    "pairs of odd columns": ((2, 5, 8), 16, (3, 4), 3, 1, "VALID"),
    "one by one": ((2, 5, 5), 4, (1, 1), 3, 2, "VALID"),
    "winograd": ((8, 13, 12), 16, (3, 3), 128, 1, "VALID"),
    "few tiles": ((7, 6, 6), 16, (3, 3), 128, 1, "VALID"),
    "batch minor": ((8, 7, 8), 3, (5, 5), 4, 1, "SAME"),
    "toom cook": ((9, 9, 8), 4, (4, 5), 3, 1, "VALID"),
    "toom cook of three": ((8, 6, 7), 5, (3, 3), 3, 1, "SAME"),
    "pooled banded": ((2, 7, 8), 3, (3, 2), 4, 1, "VALID"),
}
ORDERED = ("canonical", "pairs", "pairs of odd columns", "few tiles")
POOLED = (
    "winograd",
    "few tiles",
    "batch minor",
    "toom cook",
    "toom cook of three",
    "pooled banded",
)


def forms_of(path):
    """Returns our form of a path, and that of lax."""
    return (ours_pooled, plain_pooled) if path in POOLED else (ours, plain)


every_path = pytest.mark.parametrize("path", PATHS)


def layer_of(path):
    image, channels, window, features, strides, padding = PATHS[path]
    x, kernel = draw((*image, channels), (*window, channels, features))
    return x, kernel, strides, padding


class Found(NamedTuple):
    """What is found of a layer with one form of convolution.

    Attributes:
      batched: outputs and gradients for some kernels: ours by vmap.
      end: the kernel after steps of gradient descent: ours in a scan.
      low: outputs and gradients: ours in bfloat16.
      product: of the Hessian of a loss with a vector.
    """

    batched: list
    end: Any
    low: list
    product: Any


@functools.cache
def found(path):
    """Returns what is found with ours and with lax's, from one program."""
    x, kernel, *options = layer_of(path)
    kernels, xs = np.stack([kernel, 2 * kernel, kernel - 1]), np.stack([x, x + 1, -x])

    def of(form, batched, end, low):
        run = with_gradients(form, *options)

        def step(kernel, x):
            return kernel - 0.01 * run(x, kernel)[2]

        def product(x, kernel):
            def loss(kernel):
                return jnp.sin(form(x, kernel, *options)).sum()

            return jax.jvp(jax.grad(loss), (kernel,), (kernel + 1,))[1]

        def everything(x, kernel, kernels, xs):
            end_of_all = end(step, kernel, xs)
            of_all = batched(run, x, kernels)
            return Found(of_all, end_of_all, low(run, x, kernel), product(x, kernel))

        return everything

    mine, theirs = forms_of(path)
    by_vmap = of(
        mine,
        lambda run, x, kernels: jax.vmap(run, (None, 0))(x, kernels),
        lambda step, kernel, xs: lax.scan(lambda k, x: (step(k, x), ()), kernel, xs)[0],
        lambda run, *layer: run(*(a.astype(jnp.bfloat16) for a in layer)),
    )
    by_lax = of(
        theirs,
        lambda run, x, kernels: lax.map(functools.partial(run, x), kernels),
        lambda step, kernel, xs: functools.reduce(step, xs, kernel),
        lambda run, *layer: run(*layer),
    )
    both = quickly(lambda *given: (by_vmap(*given), by_lax(*given)))
    return both(x, kernel, kernels, xs)


@every_path
def test_vmap_over_parameters_is_a_loop(path):
    got, expected = found(path)
    for i in range(3):
        assert_close([a[i] for a in got.batched], [a[i] for a in expected.batched])


@every_path
def test_scan_and_map_change_nothing(path):
    got, expected = found(path)
    assert_close([got.end], [expected.end])


@every_path
def test_bfloat16_stays_bfloat16(path):
    got, expected = found(path)
    assert all(a.dtype == jnp.bfloat16 for a in got.low)
    low = [a.astype(jnp.float32) for a in got.low]
    if path in POOLED:  # the largest of four may be another one
        low, expected = low[:1], expected._replace(low=expected.low[:1])
    assert_close(low, expected.low, tolerance=0.05)


@every_path
def test_hessian_vector_products_are_those_of_lax(path):
    got, expected = found(path)
    assert_close([got.product], [expected.product], tolerance=1e-4)


@pytest.mark.parametrize("path", ["banded", "batch minor", "toom cook"])
def test_what_has_no_gradient_of_its_own_goes_forwards_on_cpus(path):
    x, kernel, *options = layer_of(path)

    def pushed(form):
        return jax.jvp(lambda k: form(x, k, *options), (kernel,), (kernel + 1,))

    mine, theirs = forms_of(path)
    assert_close(*quickly(lambda: (pushed(mine), pushed(theirs)))())


@every_path
def test_clients_on_several_devices_get_their_own_gradients(path):
    x, kernel, *options = layer_of(path)
    mine, theirs = forms_of(path)
    devices = jax.device_count()
    mesh = jax.make_mesh(
        (devices,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    xs = np.stack([x * i for i in range(devices)])

    def client(x, kernel):
        kernel = lax.pcast(kernel, "clients", to="varying")
        return jax.grad(lambda k: jnp.sin(mine(x[0], k, *options)).sum())(kernel)[None]

    got = quickly(
        jax.shard_map(
            client, mesh=mesh, in_specs=(P("clients"), P()), out_specs=P("clients")
        )
    )(xs, kernel)
    one = quickly(jax.grad(lambda k: jnp.sin(theirs(xs[3], k, *options)).sum()))(kernel)
    assert_close([got[3]], [one], tolerance=1e-4)  # of sines of large numbers


@every_path
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_accelerators_get_the_plain_convolution(path, platform):
    x, kernel, *options = layer_of(path)
    traced = jax.jit(with_gradients(forms_of(path)[0], *options)).trace(x, kernel)
    for_cpu = traced.lower(lowering_platforms=("cpu",)).as_text()
    for_others = traced.lower(lowering_platforms=(platform,)).as_text()
    mark = "optimization_barrier" if path in ORDERED else "dot_general"
    assert mark in for_cpu
    assert for_others.count("stablehlo.convolution") == 3
    assert "dot_general" not in for_others
    assert "optimization_barrier" not in for_others


@every_path
def test_accelerators_make_hessian_vector_products(path):
    x, kernel, *options = layer_of(path)
    form = forms_of(path)[0]
    gradient = jax.grad(lambda k: jnp.sin(form(x, k, *options)).sum())
    product = jax.jit(lambda k: jax.jvp(gradient, (k,), (k,))[1])
    for_gpus = product.trace(kernel).lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.convolution" in for_gpus
    assert "dot_general" not in for_gpus


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("strides", [1, 2, 3])
@pytest.mark.parametrize("size", [(7, 8), (9, 5)])
def test_the_plain_form_s_gradients_are_those_of_jax(size, strides, padding):
    x, kernel = draw((2, *size, 3), (4, 3, 3, 5))
    pads = convolution._checked(x, kernel, strides, padding)

    def own(x, kernel, strides, padding):
        del padding
        return convolution._plain(x, kernel, pads, strides)

    found = (with_gradients(form, strides, padding) for form in (own, plain))
    assert_close(*(quickly(form)(x, kernel) for form in found))


@pytest.mark.parametrize("use_bias", [True, False])
def test_the_layer_has_the_parameters_and_the_output_of_flax(use_bias):
    x = draw((2, 7, 7, 3))[0]
    options = {"strides": 2, "padding": "VALID", "use_bias": use_bias}
    layer, of_flax = Conv(5, (3, 3), **options), nn.Conv(5, (3, 3), **options)
    params = layer.init(KEY, x)
    expected = of_flax.init(KEY, x)
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    assert_close([layer.apply(params, x)], [of_flax.apply(params, x)])


def test_the_pooled_layer_is_the_pool_of_relu_of_the_layer():
    x = draw((8, 9, 9, 3))[0]
    pooled, layer = PooledConv(4, (3, 3)), Conv(4, (3, 3))
    params = layer.init(KEY, x)
    jax.tree.map(np.testing.assert_array_equal, params, pooled.init(KEY, x))
    params["params"]["bias"] += 0.1
    expected = max_pool(nn.relu(layer.apply(params, x)))
    assert_close([pooled.apply(params, x)], [expected])


def test_a_pooled_layer_has_no_strides():
    with pytest.raises(ValueError, match="strides=1 of a pooled layer, got strides=2"):
        PooledConv(4, (3, 3), 2).init(KEY, draw((2, 9, 9, 3))[0])


@pytest.mark.parametrize("shape", [(2, 6, 8, 3), (1, 7, 5, 2), (3, 2, 2, 1)])
def test_the_pool_is_that_of_lax_where_numbers_are_equal_too(shape):
    draw = np.random.default_rng(0)
    x = draw.integers(0, 3, shape).astype(np.float32)  # full of ties

    def run(pool, x):
        y, vjp = jax.vjp(pool, x)
        return y, vjp(1.0 + jnp.arange(y.size, dtype=y.dtype).reshape(y.shape))[0]

    ours, lax_s = quickly(lambda x: (run(max_pool, x), run(window_max, x)))(x)
    for got, expected in zip(ours, lax_s, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_the_pool_passes_nan_on_from_any_place():
    for place in range(4):
        x = np.where(np.arange(4) == place, np.nan, 1.0).astype(np.float32)
        assert np.isnan(max_pool(x.reshape(1, 2, 2, 1))).all()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x, k: convolve(x, k, strides=0), ValueError, "strides=0"),
        (lambda x, k: convolve(x, k, strides=(1, 1)), TypeError, r"strides=\(1, 1\)"),
        (lambda x, k: convolve(x, k, padding="same"), ValueError, "'SAME'.*'same'"),
        (lambda x, k: convolve(x[0], k), ValueError, r"\(4, 4, 3\)"),
        (lambda x, k: convolve(x[..., :2], k), ValueError, r"4, 2\), \(5, 5, 3"),
        (lambda x, k: convolve(x, k, padding="VALID"), ValueError, "5x5.*got 4x4"),
        (lambda x, k: max_pool(x[:, :1]), ValueError, "2x2.*got 1x4"),
        (
            lambda x, k: convolve_and_pool(x, k[:4], padding="VALID"),
            ValueError,
            "5x5|4x5.*got 4x4",
        ),
        (
            lambda x, k: convolve_and_pool(x, k[:4, :3], padding="VALID"),
            ValueError,
            "2x2 at least to pool, got 1x2",
        ),
    ],
)
def test_bad_input_gets_one_line(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call(*draw((1, 4, 4, 3), (5, 5, 3, 2)))
    assert "\n" not in str(caught.value)
