"""The laws that every sketch operator obeys, whatever the shapes."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from fl_sketch import trees
from tests.meshes import mesh_of
from tests.operators import OPERATORS, build
from tests.simulation import compiled

every_operator = pytest.mark.parametrize("name", OPERATORS)
KEYS = 20_000


@functools.cache
def noise(seed):
    return np.asarray(jax.random.normal(jax.random.key(seed), (300,)))


def vector(d, seed=1):
    # Uneven on purpose: a law that holds for this holds for more than noise.
    return jnp.asarray(noise(seed)[:d] * (1 + np.arange(d, dtype=np.float32) % 7))


shapes = {
    "d": st.integers(1, 40),
    "b": st.integers(1, 12),
    "seed": st.integers(0, 2**31 - 1),
}


@every_operator
@given(**shapes)
@settings(max_examples=5, deadline=None, derandomize=True, phases=[Phase.generate])
def test_sketch_is_linear_and_the_adjoint_is_its_transpose(name, d, b, seed):
    op, key = build(name, b, d), jax.random.key(seed)
    x, y = vector(d), vector(d, 2)
    s = jax.random.normal(jax.random.key(3), op.zeros(d).shape)

    @compiled
    def everything(key, x, y, s):
        columns = jax.vmap(lambda e: op.apply(key, e).ravel())(jnp.eye(d))
        back = op.transpose(key, s, d)
        added = op.add_transpose(key, s, x, -0.5)
        sketches = [op.apply(key, v) for v in (x, y, 2 * x - y)]
        return columns.T, back, added, *sketches

    # float64 from here on, so that the tolerances are those of the operators
    results = everything(key, x, y, s)
    r, back, added, rx, ry, rxy = (np.asarray(a, np.float64) for a in results)
    x, y, s = (np.asarray(a, np.float64) for a in (x, y, s))
    size = np.linalg.norm(r, 2) * (np.linalg.norm(x) + np.linalg.norm(y))
    np.testing.assert_allclose(rxy, 2 * rx - ry, atol=1e-5 * size)
    np.testing.assert_allclose(rx.ravel(), r @ x, atol=1e-5 * size)
    inner = size * np.linalg.norm(s)
    assert rx.ravel() @ s.ravel() == pytest.approx(x @ back, abs=1e-5 * inner)
    np.testing.assert_allclose(back, r.T @ s.ravel(), atol=1e-5 * inner)
    np.testing.assert_allclose(added, x - back / 2, atol=1e-5 * (inner + size))
    assert op.size(d) == op.zeros(d).size == rx.size


@every_operator
@pytest.mark.parametrize(("d", "b"), [(96, 16), (100, 16), (37, 5), (9, 12)])
def test_estimate_is_unbiased_with_the_error_of_its_closed_form(name, d, b):
    op, x = build(name, b, d), vector(d)

    @jax.vmap
    def desketched(key):
        return op.transpose(key, op.apply(key, x), d)

    keys = jax.random.split(jax.random.key(5), KEYS)
    ys = np.asarray(compiled(desketched)(keys), np.float64)
    x = np.asarray(x, np.float64)
    standard_error = ys.std(axis=0) / KEYS**0.5
    assert np.all(np.abs(ys.mean(axis=0) - x) <= 4 * standard_error + 1e-4)

    errors = np.sum((ys - x) ** 2, axis=1)
    expected = OPERATORS[name].error(x, b)
    tolerance = 3 * errors.std() / KEYS**0.5 + 1e-6 * (x @ x)
    assert errors.mean() == pytest.approx(expected, abs=tolerance)


@every_operator
def test_every_round_has_a_fresh_sketch_and_one_key_the_same(name):
    op, x = build(name, 8, 30), vector(30)
    first = op.apply(jax.random.key(0), x)
    np.testing.assert_array_equal(first, op.apply(jax.random.key(0), x))
    if name != "identity":
        assert not np.allclose(first, op.apply(jax.random.key(1), x))


@every_operator
@pytest.mark.parametrize("d", [1, 100])
def test_jit_vmap_and_map_agree_with_the_plain_call(name, d):
    op, key = build(name, 8, d), jax.random.key(4)
    xs = jnp.stack([vector(d, seed) for seed in range(3)])
    plain = [op.apply(key, x) for x in xs]
    close = {"rtol": 1e-5, "atol": 1e-5}

    np.testing.assert_allclose(compiled(op.apply)(key, xs[0]), plain[0], **close)
    batched = compiled(jax.vmap(op.apply, in_axes=(None, 0)))(key, xs)
    np.testing.assert_allclose(batched, jnp.stack(plain), **close)
    mapped = compiled(lambda xs: jax.lax.map(lambda x: op.apply(key, x), xs))(xs)
    np.testing.assert_allclose(mapped, jnp.stack(plain), **close)

    for read in (op.transpose, op.estimate):
        back = [read(key, s, d) for s in plain]
        backs = compiled(jax.vmap(lambda s, read=read: read(key, s, d)))(batched)
        np.testing.assert_allclose(backs, jnp.stack(back), rtol=1e-4, atol=1e-4)


@every_operator
def test_sum_of_sketches_over_devices_is_the_sketch_of_the_sum(name):
    d, key = 50, jax.random.key(6)
    op = build(name, 8, d)
    xs = jnp.stack([vector(d, seed) for seed in range(8)])
    mesh = mesh_of(8, "devices")

    def on_one_device(xs, key):
        total = jax.lax.psum(op.apply(key, xs[0]), "devices")
        varied = op.add_transpose(key, op.apply(key, xs[0]), xs[0], 1.0)
        return total, op.estimate(key, total, d), varied[None]

    step = jax.shard_map(
        on_one_device,
        mesh=mesh,
        in_specs=(P("devices"), P()),
        out_specs=(P(), P(), P("devices")),
    )
    total, estimate, varied = compiled(step)(xs, key)
    summed = op.apply(key, xs.sum(0))
    np.testing.assert_allclose(total, summed, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(
        estimate, op.estimate(key, summed, d), rtol=1e-4, atol=1e-3
    )
    one = xs[3] + op.transpose(key, op.apply(key, xs[3]), d)
    np.testing.assert_allclose(varied[3], one, rtol=1e-4, atol=1e-3)


@every_operator
def test_keys_may_differ_from_device_to_device(name):
    d = 20
    op = build(name, 4, d)
    mesh = mesh_of(8, "devices")
    keys = jax.random.split(jax.random.key(0), 8)

    def on_one_device(keys, x):
        s = op.apply(keys[0], x)
        return op.transpose(keys[0], s, d)[None]

    step = jax.shard_map(
        on_one_device, mesh=mesh, in_specs=(P("devices"), P()), out_specs=P("devices")
    )
    own = compiled(step)(keys, vector(d))
    alone = op.transpose(keys[5], op.apply(keys[5], vector(d)), d)
    np.testing.assert_allclose(own[5], alone, rtol=1e-5, atol=1e-5)


@every_operator
def test_float16_types_are_summed_in_float32(name):
    op, key = build(name, 8, 300), jax.random.key(2)
    x = vector(300).astype(jnp.bfloat16)
    s = op.apply(key, x)
    assert s.dtype == jnp.float32
    np.testing.assert_allclose(
        s, op.apply(key, x.astype(jnp.float32)), rtol=1e-5, atol=1e-5
    )
    assert op.transpose(key, s, x).dtype == jnp.bfloat16
    assert op.add_transpose(key, s, x, 0.1).dtype == jnp.bfloat16


@every_operator
def test_nan_is_not_hidden(name):
    op, key = build(name, 8, 64), jax.random.key(0)
    everything = jnp.full(64, jnp.nan)
    assert jnp.isnan(op.apply(key, everything)).all()
    if name == "uniform_sampling":  # sends a coordinate or does not
        return
    s = op.apply(key, vector(64).at[17].set(jnp.nan))
    assert jnp.isnan(s).any()
    assert jnp.isnan(op.estimate(key, s, 64)[17])


@every_operator
def test_a_tree_is_sketched_as_the_vector_of_its_leaves(name):
    tree = {"w": vector(12).reshape(3, 4), "b": (vector(5), vector(1).reshape(()))}
    d, key = 18, jax.random.key(1)
    op = build(name, 6, d)
    flat, unravel = jax.flatten_util.ravel_pytree(tree)
    s = op.apply(key, tree)
    np.testing.assert_array_equal(s, op.apply(key, flat))
    assert op.size(tree) == s.size
    back = op.transpose(key, s, tree)
    chex.assert_trees_all_equal(back, unravel(op.transpose(key, s, d)))
    shapes = jax.eval_shape(lambda: tree)
    chex.assert_trees_all_equal(back, op.transpose(key, s, shapes))


@every_operator
def test_resize_keeps_the_operator_and_changes_the_budget(name):
    smaller = OPERATORS[name].make(16).resize(8)
    if name == "identity":
        assert smaller.size(40) == 40
        return
    assert 4 <= smaller.size(40) <= 8
    assert OPERATORS[name].make(16).resize(1).size(40) <= 5


@every_operator
def test_derivatives_are_those_of_a_linear_map(name):
    """Forwards R, backwards R^T, and once more: an attack differentiates twice."""
    op, key = build(name, 8, 40), jax.random.key(3)
    x, dx = vector(40), vector(40, 2)

    def apply(x):
        return trees.ravel(op.apply(key, x))

    message, tangent = jax.jvp(apply, (x,), (dx,))
    np.testing.assert_allclose(tangent, apply(dx), rtol=1e-4, atol=1e-3)
    s = jax.random.normal(jax.random.key(5), message.shape)
    (back,) = jax.vjp(apply, x)[1](s)
    shaped = trees.unraveler(op.apply(key, x))(s)
    expected = op.transpose(key, shaped, x)
    np.testing.assert_allclose(back, expected, rtol=1e-4, atol=1e-3)

    def energy(x):
        return jnp.sum(apply(x) ** 2)

    twice = jax.jvp(jax.grad(energy), (x,), (dx,))[1]
    again = op.transpose(key, op.apply(key, 2 * dx), x)
    np.testing.assert_allclose(twice, again, rtol=1e-3, atol=1e-2)
