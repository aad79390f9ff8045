"""Every form of a convolution is lax's, in value and gradient; and so is the pool."""

import flax.linen as nn
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from fl_sketch.models import Conv, convolve, max_pool
from fl_sketch.models import convolution as forms

KEY = jax.random.key(0)


def plain(x, kernel, strides, padding):
    return lax.conv_general_dilated(
        x, kernel, (strides, strides), padding, dimension_numbers=forms.ORDER
    )


def ours(x, kernel, strides, padding):
    return convolve(x, kernel, strides=strides, padding=padding)


def draw(*shapes):
    keys = jax.random.split(KEY, len(shapes))
    return [jax.random.normal(*pair) for pair in zip(keys, shapes, strict=True)]


def with_gradients(form, strides, padding):
    """Returns (x, kernel) -> (output, dx, dkernel) for a fixed random cotangent."""

    def run(x, kernel):
        y, vjp = jax.vjp(lambda x, k: form(x, k, strides, padding), x, kernel)
        return y, *vjp(jax.random.normal(jax.random.key(9), y.shape).astype(y.dtype))

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
        "image": st.tuples(st.integers(1, 3), sizes, sizes),
        "window": st.tuples(st.integers(1, 5), st.integers(1, 5)),
        "channels": st.sampled_from([1, 2, 3, 16, 17]),
        "features": st.sampled_from([1, 3, 8, 40]),
        "strides": st.sampled_from([1, 1, 2, 3]),
        "padding": st.sampled_from(["SAME", "VALID"]),
    }
)


@hypothesis.settings(max_examples=10, deadline=None, derandomize=True)
@hypothesis.given(layers)
def test_any_layer_equals_lax_in_value_and_gradients(layer):
    window, padding = layer["window"], layer["padding"]
    if padding == "VALID":
        hypothesis.assume(min(np.subtract(layer["image"][1:], window)) >= 0)
    x, kernel = draw(
        (*layer["image"], layer["channels"]),
        (*window, layer["channels"], layer["features"]),
    )

    @jax.jit
    def both(x, kernel):
        return [
            with_gradients(form, layer["strides"], padding)(x, kernel)
            for form in (ours, plain)
        ]

    assert_close(*both(x, kernel))


# (image, channels, kernel, features, strides, padding), one for every path.
PATHS = {
    "banded": ((2, 8, 8), 3, (3, 3), 5, 1, "SAME"),
    "banded with strides": ((2, 9, 9), 2, (3, 3), 5, 2, "SAME"),
    "canonical": ((2, 6, 6), 16, (3, 3), 4, 1, "SAME"),
    "one by one": ((2, 5, 5), 4, (1, 1), 3, 2, "VALID"),
}
every_path = pytest.mark.parametrize("path", PATHS)


def layer_of(path):
    image, channels, window, features, strides, padding = PATHS[path]
    x, kernel = draw((*image, channels), (*window, channels, features))
    return x, kernel, strides, padding


@every_path
def test_vmap_over_parameters_is_a_loop(path):
    x, kernel, *options = layer_of(path)
    kernels = jnp.stack([kernel, 2 * kernel, kernel - 1])
    run = with_gradients(ours, *options)
    reference = with_gradients(plain, *options)
    batched = jax.jit(jax.vmap(run, (None, 0)))(x, kernels)
    for i, one in enumerate(kernels):
        assert_close([b[i] for b in batched], jax.jit(reference)(x, one))


@every_path
def test_scan_and_map_change_nothing(path):
    x, kernel, *options = layer_of(path)

    def step(kernel, x):
        y, _, dkernel = with_gradients(ours, *options)(x, kernel)
        return kernel - 0.01 * dkernel, y

    xs = jnp.stack([x, x + 1, -x])
    end, _ = jax.jit(lambda kernel: lax.scan(step, kernel, xs))(kernel)
    for x in xs:
        kernel = kernel - 0.01 * with_gradients(plain, *options)(x, kernel)[2]
    assert_close([end], [kernel])


@every_path
def test_bfloat16_stays_bfloat16(path):
    x, kernel, *options = layer_of(path)
    low = [a.astype(jnp.bfloat16) for a in (x, kernel)]
    got = jax.jit(with_gradients(ours, *options))(*low)
    assert all(a.dtype == jnp.bfloat16 for a in got)
    exact = with_gradients(plain, *options)(*(a.astype(jnp.float32) for a in low))
    assert_close([a.astype(jnp.float32) for a in got], exact, tolerance=0.05)


@every_path
def test_hessian_vector_products_are_those_of_lax(path):
    x, kernel, *options = layer_of(path)

    def product(form):
        loss = lambda kernel: jnp.sin(form(x, kernel, *options)).sum()  # noqa: E731
        return jax.jit(
            lambda kernel: jax.jvp(jax.grad(loss), (kernel,), (kernel + 1,))[1]
        )(kernel)

    assert_close([product(ours)], [product(plain)], tolerance=1e-4)


@every_path
def test_clients_on_several_devices_get_their_own_gradients(path):
    x, kernel, *options = layer_of(path)
    devices = jax.device_count()
    mesh = jax.make_mesh(
        (devices,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    xs = jnp.stack([x * i for i in range(devices)])

    def client(x, kernel):
        kernel = lax.pcast(kernel, "clients", to="varying")
        return jax.grad(lambda k: jnp.sin(ours(x[0], k, *options)).sum())(kernel)[None]

    got = jax.jit(
        jax.shard_map(
            client, mesh=mesh, in_specs=(P("clients"), P()), out_specs=P("clients")
        )
    )(xs, kernel)
    one = jax.grad(lambda k: jnp.sin(plain(xs[3], k, *options)).sum())(kernel)
    assert_close([got[3]], [one])


@every_path
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_accelerators_get_the_plain_convolution(path, platform):
    x, kernel, *options = layer_of(path)
    traced = jax.jit(with_gradients(ours, *options)).trace(x, kernel)
    for_cpu = traced.lower(lowering_platforms=("cpu",)).as_text()
    for_others = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("optimization_barrier" if path == "canonical" else "dot_general") in for_cpu
    assert for_others.count("stablehlo.convolution") == 3
    assert "dot_general" not in for_others
    assert "optimization_barrier" not in for_others


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


def window_max(x):
    window = (1, 2, 2, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")


@pytest.mark.parametrize("shape", [(2, 6, 8, 3), (1, 7, 5, 2), (3, 2, 2, 1)])
def test_the_pool_is_that_of_lax_where_numbers_are_equal_too(shape):
    x = jax.random.randint(KEY, shape, 0, 3).astype(jnp.float32)  # full of ties

    def run(pool):
        y, vjp = jax.vjp(pool, x)
        return y, vjp(1.0 + jnp.arange(y.size, dtype=y.dtype).reshape(y.shape))[0]

    for got, expected in zip(run(max_pool), run(window_max), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_the_pool_passes_nan_on_from_any_place():
    for place in range(4):
        x = jnp.arange(4.0).at[place].set(jnp.nan).reshape(1, 2, 2, 1)
        assert np.isnan(max_pool(x)).all()


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
    ],
)
def test_bad_input_gets_one_line(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call(*draw((1, 4, 4, 3), (5, 5, 3, 2)))
    assert "\n" not in str(caught.value)
