"""A form is batched, scanned and differentiated as the function is."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from fl_sketch import fast
from tests.channels.rounds import quickly
from tests.fast.watching import floats

X = floats((2, 8, 8, 3))
PARAMS = {"kernel": floats((3, 3, 3, 4), 1) / 3, "dense": floats((64, 2), 2) / 8}


def loss(params, x):
    y = lax.conv_general_dilated(
        x, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    y = nn.max_pool(nn.relu(y + 0.1), (2, 2), (2, 2))
    return jnp.sin(y.reshape(len(x), -1) @ params["dense"]).sum()


def close(ours, plain, tolerance=1e-3):
    assert jax.tree.structure(ours) == jax.tree.structure(plain)
    near = functools.partial(np.testing.assert_allclose, atol=tolerance, rtol=tolerance)
    jax.tree.map(near, ours, plain)


def both(make, *arguments):
    """Returns what is made of the form and of the function."""
    return quickly(lambda *a: [make(f)(*a) for f in (fast.form(loss), loss)])(
        *arguments
    )


def several(count):
    return jax.tree.map(lambda leaf: np.stack([leaf * n for n in range(count)]), PARAMS)


def test_vmap_over_clients_and_points():
    xs = np.stack([X, X + 1, -X])

    def gradients(f):
        return jax.vmap(jax.vmap(jax.grad(f), (None, 0)), (0, None))

    def one_by_one(f):
        over_clients = lambda p: lax.map(lambda x: jax.grad(f)(p, x), xs)  # noqa: E731
        return lambda p, xs: lax.map(over_clients, p)

    ours = quickly(gradients(fast.form(loss)))(several(2), xs)
    close(ours, quickly(one_by_one(loss))(several(2), xs))


def test_vmap_over_the_examples_of_a_batch():
    def each(f):
        return lambda p, x: jax.vmap(lambda one: jax.value_and_grad(f)(p, one[None]))(x)

    close(*both(each, PARAMS, X))


def test_products_with_a_hessian_and_twice_mapped():
    def product(f):
        def along(v):
            return jax.jvp(lambda p: jax.grad(f)(p, X), (PARAMS,), (v,))[1]

        return jax.vmap(along)

    close(*both(product, several(3)))


def test_steps_in_a_scan_of_clients():
    def trained(f):
        def client(total, x):
            def step(p, _):
                slope = jax.grad(f)(p, x)
                return jax.tree.map(lambda a, b: a - 0.1 * b, p, slope), f(p, x)

            end, values = lax.scan(step, PARAMS, None, 3)
            return jax.tree.map(jnp.add, total, end), values

        return lambda xs: lax.scan(client, PARAMS, xs)

    close(*both(trained, np.stack([X, X / 2])))


def test_clients_on_several_devices():
    devices = jax.device_count()
    mesh = jax.make_mesh((devices,), ("i",), (jax.sharding.AxisType.Auto,))

    def of_all(f):
        def client(params, x):
            params = jax.tree.map(lambda p: lax.pcast(p, "i", to="varying"), params)
            return jax.tree.map(lambda g: g[None], jax.grad(f)(params, x[0]))

        return jax.shard_map(
            client, mesh=mesh, in_specs=(P(), P("i")), out_specs=P("i")
        )

    xs = np.stack([X * n for n in range(devices)])
    ours = quickly(of_all(fast.form(loss)))(PARAMS, xs)
    close(
        ours,
        quickly(lambda p, xs: lax.map(lambda x: jax.grad(loss)(p, x), xs))(PARAMS, xs),
    )


def test_numbers_around_a_loss_may_be_traced():
    def scaled(f):
        def of_scale(scale):
            def value(p):
                return f(jax.tree.map(lambda leaf: scale * leaf, p), X) * scale

            played = fast.form(value) if f is not loss else value
            return jax.grad(played)(PARAMS)["kernel"].sum()

        return lambda scales: jax.vmap(jax.value_and_grad(of_scale))(scales)

    close(*both(scaled, np.float32([0.5, 1.5])))


def test_a_function_is_traced_once():
    calls = []

    def counted(params, x):
        calls.append(1)
        return loss(params, x)

    jax.jit(jax.grad(fast.form(counted))).lower(PARAMS, X)
    assert len(calls) == 1


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_accelerators_without_forms_get_the_plain_layers(platform):
    def text(f):
        traced = jax.jit(jax.grad(f)).trace(PARAMS, X)
        return traced.lower(lowering_platforms=(platform,)).as_text()

    ours, plain = text(fast.form(loss)), text(loss)
    count = "stablehlo.convolution"
    assert ours.count(count) == plain.count(count) == 2
    assert "optimization_barrier" not in ours
