"""The kernels for GPUs, run by an interpreter, are the loops of other platforms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import sketch
from fl_sketch.core import platforms
from fl_sketch.core.hashing import flip, sign_mask, sign_seeds
from fl_sketch.sketch import hadamard, hadamard_gpu, hashed, hashed_gpu
from fl_sketch.sketch.hashed_gpu import Blocks
from fl_sketch.sketch.median import median

slow = pytest.mark.slow
NEAR = {"rtol": 1e-5, "atol": 1e-3}


@pytest.mark.parametrize(
    "blocks",
    [  # d, columns, rows, entries of a column in each row
        pytest.param(Blocks(70, 64, 1, 1), id="one row, a rest"),
        pytest.param(Blocks(37, 100, 2, 1), id="more buckets than numbers"),
        pytest.param(Blocks(1003, 64, 5, 1), id="five rows", marks=slow),
        pytest.param(Blocks(1500, 700, 1, 3), id="three entries a row", marks=slow),
        pytest.param(Blocks(333, 10, 9, 1), id="more rows than a pass", marks=slow),
        pytest.param(Blocks(3000, 7, 1, 1), id="seven buckets", marks=slow),
    ],
)
def test_kernels_are_the_loops_and_their_gradients_each_other(blocks, monkeypatch):
    kernels = blocks._replace(interpret=True)
    x = jax.random.normal(jax.random.key(0), (blocks.d,))
    tables = jax.random.normal(jax.random.key(1), (blocks.rows, blocks.cols))

    @jax.jit
    def everything(x, tables):
        draws = blocks.draw(jax.random.key(2))
        apply = functools.partial(hashed_gpu.apply, kernels, *draws)
        read = functools.partial(hashed_gpu.read, kernels, sum, *draws)
        summed, to_x = jax.vjp(apply, x)
        back, to_tables = jax.vjp(read, tables)
        loops = (
            hashed._apply(blocks, *draws, x),
            hashed._read(blocks, sum, *draws, tables),
        )
        return (summed, back), loops, (to_tables(x)[0], to_x(tables)[0])

    (summed, back), (by_loop, back_by_loop), gradients = everything(x, tables)
    np.testing.assert_allclose(summed, by_loop, **NEAR)  # in another order
    np.testing.assert_array_equal(back, back_by_loop)
    np.testing.assert_array_equal(gradients[0], summed)
    np.testing.assert_array_equal(gradients[1], back)
    if blocks.terms == 1:
        monkeypatch.setattr(hashed_gpu, "LONG_ROW", 1)
        draws = blocks.draw(jax.random.key(2))
        by_bucket = jax.jit(functools.partial(hashed_gpu.read, kernels, sum))
        np.testing.assert_array_equal(by_bucket(*draws, tables), back_by_loop)


@slow
def test_the_median_and_its_gradient_are_the_same_and_clients_are_batched():
    blocks, weights = Blocks(200, 30, 5, 1), jnp.arange(200.0)
    kernels = blocks._replace(interpret=True)
    tables = jax.random.normal(jax.random.key(1), (5, 30))

    @jax.jit
    def everything(tables):
        draws = blocks.draw(jax.random.key(2))
        results = []
        for way in (
            functools.partial(hashed_gpu.read, kernels, median, *draws),
            functools.partial(hashed._read, blocks, median, *draws),
        ):
            estimate, pull = jax.vjp(way, tables)
            results.append((estimate, pull(weights)[0]))
        apply = functools.partial(hashed_gpu.apply, kernels, *draws)
        return *results, jax.vmap(apply)(jnp.stack([weights, -weights]))

    (kernel, gradient), (loop, gradient_of_loop), (one, other) = everything(tables)
    np.testing.assert_array_equal(kernel, loop)
    np.testing.assert_allclose(gradient, gradient_of_loop, **NEAR)
    np.testing.assert_array_equal(one, -other)


@pytest.mark.parametrize(
    "d", [3000, *(pytest.param(d, marks=slow) for d in (4096, 5000, 2**17))]
)
def test_the_transform_and_its_adjoint_are_those_of_butterflies(d):
    n = max(hadamard_gpu.BLOCK, 1 << (d - 1).bit_length())
    mixing = hadamard_gpu.Mixing(d, n, interpret=True)
    x = jax.random.normal(jax.random.key(1), (d,))
    y = jax.random.normal(jax.random.key(2), (n,))

    @jax.jit
    def everything(x, y):
        seeds = sign_seeds(jax.random.key(4), 1)
        mask = sign_mask(seeds, jnp.arange(d, dtype=jnp.uint32), 0)
        plain = hadamard.walsh_hadamard_by_butterflies
        expected = plain(jnp.pad(flip(x, mask), (0, n - d))), flip(plain(y)[:d], mask)
        mixed, pull = jax.vjp(functools.partial(hadamard_gpu.mixed, mixing, seeds), x)
        unmixed = hadamard_gpu.unmixed(mixing, seeds, y)
        return (mixed, unmixed), expected, pull(y)[0]

    (mixed, unmixed), expected, gradient = everything(x, y)
    np.testing.assert_allclose(mixed, expected[0], **NEAR)
    np.testing.assert_allclose(unmixed, expected[1], **NEAR)
    np.testing.assert_array_equal(gradient, unmixed)


@pytest.mark.parametrize("op", [sketch.count_sketch(70, rows=3), sketch.srht(600)])
def test_a_process_with_a_gpu_traces_kernels_and_cpus_ignore_them(op, monkeypatch):
    key, x = jax.random.key(0), jnp.arange(5000.0)
    alone = op.apply(key, x)
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    again = op.resize(op.size())  # nothing of it is traced yet
    assert "pallas_call" in str(jax.make_jaxpr(again.apply)(key, x))
    np.testing.assert_array_equal(again.apply(key, x), alone)
