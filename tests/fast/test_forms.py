"""Every form of a convolution is lax's, in value and gradient; and so is the pool."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from fl_sketch.fast import forms, plain
from fl_sketch.fast.cpu import convolution, toom_cook, winograd
from fl_sketch.fast.pooling import max_pool
from tests.channels.rounds import quickly
from tests.refusals import refused

ORDER = ("NHWC", "HWIO", "NHWC")


def of_lax(x, kernel, strides, padding, pool=False):
    y = lax.conv_general_dilated(
        x, kernel, (strides, strides), padding, dimension_numbers=ORDER
    )
    return window_max(y) if pool else y


def window_max(x):
    window = (1, 2, 2, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")


def pads_of(x, kernel, strides, padding):
    shapes = x.shape[1:3], kernel.shape[:2]
    return tuple(lax.padtype_to_pads(*shapes, (strides, strides), padding))


def ours(x, kernel, strides, padding, pool=False):
    pads = pads_of(x, kernel, strides, padding)
    return forms.convolve(x, kernel, pads, strides, pool=pool)


def draw(*shapes):
    normal = np.random.default_rng(0).normal
    return [normal(size=shape).astype(np.float32) for shape in shapes]


def with_gradients(form, *options):
    """Returns (x, kernel) -> (output, dx, dkernel) for a fixed random cotangent."""

    def run(x, kernel):
        y, vjp = jax.vjp(lambda x, k: form(x, k, *options), x, kernel)
        cotangent = np.random.default_rng(9).normal(size=y.shape)
        return y, *vjp(jnp.asarray(cotangent, y.dtype))

    return run


def assert_close(results, expected, tolerance=1e-5):
    for result, exact in zip(results, expected, strict=True):
        assert result.shape == exact.shape and result.dtype == exact.dtype
        result, exact = (np.asarray(a, np.float64) for a in (result, exact))
        scale = max(np.abs(exact).max(initial=0), 1)
        np.testing.assert_allclose(result, exact, atol=tolerance * scale)


def assert_is_of_lax(form, x, kernel, *options):
    runs = [with_gradients(f, *options) for f in (form, of_lax)]
    both = quickly(lambda x, kernel: [run(x, kernel) for run in runs])
    assert_close(*both(x, kernel))


sizes = st.integers(1, 9)


@hypothesis.settings(max_examples=8, deadline=None, derandomize=True)
@hypothesis.given(
    image=st.tuples(st.sampled_from([1, 2, 3, 8]), sizes, sizes),
    window=st.just((3, 3)) | st.tuples(st.integers(1, 5), st.integers(1, 5)),
    channels=st.sampled_from([1, 2, 3, 5, 16, 17]),
    features=st.sampled_from([1, 3, 8, 128]),
    strides=st.sampled_from([1, 1, 2, 3]),
    padding=st.sampled_from(["SAME", "VALID"]),
    pool=st.booleans(),
)
def test_any_layer_equals_lax_in_value_and_gradients(
    image, window, channels, features, strides, padding, pool
):
    outputs = np.array(image[1:])
    if padding == "VALID":
        outputs = outputs - window + 1
    hypothesis.assume(outputs.min() > pool)
    x, kernel = draw((*image, channels), (*window, channels, features))
    assert_is_of_lax(ours, x, kernel, 1 if pool else strides, padding, pool)


# The form of `cpu` and a layer: (image, channels, kernel, features, strides, padding).
PATHS = {
    "banded": ((2, 8, 8), 3, (3, 3), 5, 1, "SAME"),
    "banded with strides": ((2, 9, 9), 2, (3, 3), 5, 2, "SAME"),
    "banded one by one": ((2, 5, 5), 4, (1, 1), 3, 2, "VALID"),
    "banded pooled": ((2, 7, 8), 3, (3, 2), 4, 1, "VALID"),
    "canonical": ((2, 6, 6), 16, (3, 3), 17, 1, "SAME"),
    "canonical pairs": ((2, 6, 6), 16, (3, 3), 4, 1, "SAME"),
    "canonical pairs of even columns": ((2, 5, 7), 16, (2, 4), 3, 1, "SAME"),
    "canonical few tiles pooled": ((7, 6, 6), 16, (3, 3), 128, 1, "VALID"),
    "winograd pooled": ((4, 11, 10), 16, (3, 3), 128, 1, "VALID"),
    "batch_minor pooled": ((8, 7, 8), 3, (5, 5), 4, 1, "SAME"),
    "batch_minor one column pooled": ((8, 7, 8), 4, (3, 1), 5, 1, "SAME"),
    "toom_cook pooled": ((8, 14, 14), 6, (5, 5), 16, 1, "VALID"),
    "toom_cook odd sizes pooled": ((9, 7, 9), 5, (3, 3), 4, 1, "SAME"),
    "toom_cook even columns pooled": ((8, 7, 8), 4, (2, 4), 3, 1, "SAME"),
    "banded few examples pooled": ((7, 7, 8), 4, (3, 3), 5, 1, "SAME"),
}
every_path = pytest.mark.parametrize("path", PATHS)


def layer_of(path):
    image, channels, window, features, *options = PATHS[path]
    x, kernel = draw((*image, channels), (*window, channels, features))
    return x, kernel, *options, path.endswith("pooled")


@every_path
def test_a_layer_has_the_form_of_its_path(path, monkeypatch):
    class Chosen(Exception):
        pass

    def chosen(*_):
        raise Chosen

    name = path.split()[0]
    home = {"winograd": winograd, "toom_cook": toom_cook}.get(name, convolution)
    monkeypatch.setattr(home, name if home is convolution else "pooled", chosen)
    jax.clear_caches()  # where a form for these shapes may be
    with pytest.raises(Chosen):
        jax.eval_shape(lambda: ours(*layer_of(path)))


@every_path
def test_loops_and_products_with_a_hessian_are_those_of_lax(path):
    x, kernel, *options = layer_of(path)
    kernels, xs = np.stack([kernel, 2 * kernel]), np.stack([x, x + 1, -x])

    def of(form, x, kernel, batched, scanned):
        run = with_gradients(form, *options)

        def step(kernel, x):
            return kernel - 0.01 * run(x, kernel)[2]

        def gradient(kernel):
            return jax.grad(lambda k: jnp.sin(form(x, k, *options)).sum())(kernel)

        product = jax.jvp(gradient, (kernel,), (kernel + 1,))[1]
        return *batched(lambda k: run(x, k)), scanned(step), product

    @quickly
    def both(x, kernel, kernels, xs):
        return of(
            *(ours, x, kernel),
            lambda run: jax.vmap(run)(kernels),
            lambda step: lax.scan(lambda k, x: (step(k, x), ()), kernel, xs)[0],
        ), of(
            *(of_lax, x, kernel),
            lambda run: lax.map(run, kernels),
            lambda step: functools.reduce(step, xs, kernel),
        )

    results, expected = both(x, kernel, kernels, xs)
    assert_close(results[:-1], expected[:-1])
    assert_close(results[-1:], expected[-1:], tolerance=1e-4)  # sines of large numbers


@pytest.mark.parametrize(
    "path", ["banded", "canonical", "winograd pooled", "toom_cook pooled"]
)
def test_bfloat16_gets_the_plain_convolution_on_cpus_too(path):
    x, kernel, *options = layer_of(path)
    layer = [a.astype(jnp.bfloat16) for a in (x, kernel)]
    lowered = jax.jit(with_gradients(ours, *options)).lower(*layer)
    assert all(a.dtype == jnp.bfloat16 for a in lowered.out_info)
    text = lowered.as_text()
    assert "dot_general" not in text and "optimization_barrier" not in text


@every_path
def test_clients_on_several_devices_get_their_own_gradients(path):
    x, kernel, *options = layer_of(path)
    devices = jax.device_count()
    mesh = jax.make_mesh((devices,), ("clients",), (jax.sharding.AxisType.Auto,))
    xs = np.stack([x * i for i in range(devices)])

    def client(x, kernel):
        kernel = lax.pcast(kernel, "clients", to="varying")
        return jax.grad(lambda k: jnp.sin(ours(x[0], k, *options)).sum())(kernel)[None]

    of_all = jax.shard_map(
        client, mesh=mesh, in_specs=(P("clients"), P()), out_specs=P("clients")
    )
    one = quickly(jax.grad(lambda k: jnp.sin(of_lax(xs[3], k, *options)).sum()))(kernel)
    # Of sines of large numbers.
    assert_close([quickly(of_all)(xs, kernel)[3]], [one], tolerance=1e-4)


@every_path
def test_accelerators_get_the_plain_convolution(path):
    x, kernel, *options = layer_of(path)

    def loss(kernel):
        return jnp.sin(ours(x, kernel, *options)).sum()

    def product(kernel):
        return jax.jvp(jax.grad(loss), (kernel,), (kernel,))[1]

    gradients = jax.jit(with_gradients(ours, *options)).trace(x, kernel)
    products = jax.jit(product).trace(kernel)
    for platform in ("cuda", "tpu"):
        for traced in (gradients, products):
            text = traced.lower(lowering_platforms=(platform,)).as_text()
            assert "dot_general" not in text and "optimization_barrier" not in text
            count = text.count("stablehlo.convolution")
            assert count == 3 if traced is gradients else count > 0


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("size", "strides"), [((7, 8), 1), ((9, 5), 2), ((7, 8), 3)])
def test_the_plain_form_s_gradients_are_those_of_jax(size, strides, padding):
    x, kernel = draw((2, *size, 3), (4, 3, 3, 5))
    pads = pads_of(x, kernel, strides, padding)

    def convolve(x, kernel, strides, padding):
        del padding
        return plain.convolve(x, kernel, pads, strides, None)

    assert_is_of_lax(convolve, x, kernel, strides, padding)


def test_gradients_of_clients_are_batched_again_over_points_that_share_images():
    x, kernel = draw((2, 7, 7, 1), (3, 3, 1, 2))

    @jax.grad
    def gradient(kernel, x):
        return ours(x, kernel, 1, "SAME").sum()

    points, clients = np.stack([[kernel] * 2] * 3), np.stack([x, x])
    of_all = jax.vmap(jax.vmap(gradient), (0, None))
    assert quickly(of_all)(points, clients).shape == (3, 2, 3, 3, 1, 2)


@pytest.mark.parametrize("columns", range(2, 6))
@pytest.mark.parametrize("examples", [1, 8])
def test_fewer_products_are_as_exact_and_give_ties_to_the_first(columns, examples):
    x, kernel = draw((examples, 9, 8, 4), (3, columns, 4, 3))
    x[:, :, :4] = 1  # outputs of a window are equal, with 2 or 3 columns to the bit
    kernel = np.round(8 * kernel)
    pads = (1, 0), (2, 1)

    def form(x, kernel):
        return toom_cook.pooled(x, kernel, pads)

    def expected(x, kernel):
        return of_lax(x, kernel, 1, pads, pool=True)

    both = quickly(lambda *layer: [with_gradients(f)(*layer) for f in (form, expected)])
    assert_close(*both(x, kernel))


@pytest.mark.parametrize("shape", [(2, 6, 8, 3), (1, 7, 5, 2), (3, 2, 2, 1)])
def test_the_pool_is_that_of_lax_where_numbers_are_equal_too(shape):
    x = np.random.default_rng(0).integers(0, 3, shape).astype(np.float32)

    def run(pool, x):
        y, vjp = jax.vjp(pool, x)
        return y, vjp(1.0 + jnp.arange(y.size, dtype=y.dtype).reshape(y.shape))[0]

    both = quickly(lambda x: (run(max_pool, x), run(window_max, x)))(x)
    jax.tree.map(np.testing.assert_array_equal, *both)


def test_the_pool_passes_nan_on_from_any_place():
    x = np.where(np.eye(4, dtype=bool), np.nan, np.float32(1))
    assert np.isnan(max_pool(x.reshape(4, 2, 2, 1))).all()


def test_the_pool_of_any_axes_is_that_of_lax():
    x = draw((6, 2, 3, 7, 1))[0]
    window = (2, 1, 1, 2, 1)
    expected = lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
    np.testing.assert_array_equal(max_pool(x, (0, 3)), expected)


def test_images_without_a_window_get_one_line():
    with refused(match="rows.*rows=0", error=ValueError):
        max_pool(jnp.ones((1, 1, 4, 3)))
