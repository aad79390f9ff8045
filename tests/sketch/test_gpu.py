"""The kernels for GPUs, run by an interpreter, are the loops of other platforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import sketch
from fl_sketch.core import platforms
from fl_sketch.core.hashing import SIGNS, flip, mixer_signs
from fl_sketch.sketch import hadamard, hadamard_gpu, hashed, hashed_gpu
from fl_sketch.sketch.median import median

# d, columns, rows, entries of a column in each row, signs
HASHED = {
    "one row": (1000, 64, 1, 1, "mixer"),
    "five rows, a rest": (1003, 64, 5, 1, "mixer"),
    "cubic signs": (303, 100, 3, 1, "polynomial"),
    "more buckets than numbers": (37, 100, 2, 1, "mixer"),
    "three entries a row": (1500, 700, 1, 3, "mixer"),
    "more rows than in a pass": (333, 10, 9, 1, "mixer"),
    "seven buckets": (3000, 7, 1, 1, "mixer"),
}


@pytest.fixture(params=HASHED)
def maps(request):
    d, cols, rows, per_row, signs = HASHED[request.param]
    form = hashed._Form("blocked", SIGNS[signs](), cols, rows, per_row)
    blocks = hashed_gpu.Blocks(form.signs, d, cols, rows, per_row, interpret=True)
    x = jax.random.normal(jax.random.key(0), (d,))
    tables = jax.random.normal(jax.random.key(1), (rows, cols))
    return form, blocks, form.draw(jax.random.key(2), d), x, tables


def test_apply_adds_the_same_numbers_in_another_order(maps):
    form, blocks, draws, x, _ = maps
    np.testing.assert_allclose(
        hashed_gpu.apply(blocks, *draws, x),
        hashed._apply(form, *draws, x),
        rtol=1e-5,
        atol=1e-4,
    )


@pytest.mark.parametrize("long_row", [1, 2**22])
def test_transpose_is_the_same_to_the_bit(maps, monkeypatch, long_row):
    monkeypatch.setattr(hashed_gpu, "LONG_ROW", long_row)
    form, blocks, draws, x, tables = maps
    loop = hashed._read(form, *draws, tables, d=x.size, reduce=sum)
    kernel = hashed_gpu.transpose(blocks, *draws, tables)
    np.testing.assert_array_equal(kernel, loop)


def test_the_gradient_of_each_is_the_other(maps):
    _, blocks, draws, x, tables = maps
    backward = jax.vjp(lambda x: hashed_gpu.apply(blocks, *draws, x), x)[1]
    transposed = hashed_gpu.transpose(blocks, *draws, tables)
    np.testing.assert_array_equal(backward(tables)[0], transposed)
    backward = jax.vjp(lambda s: hashed_gpu.transpose(blocks, *draws, s), tables)[1]
    applied = hashed_gpu.apply(blocks, *draws, x)
    np.testing.assert_array_equal(backward(x)[0], applied)


def test_the_median_and_its_gradient_are_the_same():
    form = hashed._Form("blocked", mixer_signs(), 30, 5, 1)
    blocks = hashed_gpu.Blocks(form.signs, 200, 30, 5, 1, interpret=True)
    draws = form.draw(jax.random.key(2), 200)
    tables = jax.random.normal(jax.random.key(1), (5, 30))

    def kernel(tables):
        return hashed_gpu.estimate(blocks, *draws, tables, median)

    def loop(tables):
        return hashed._read(form, *draws, tables, d=200, reduce=median)

    np.testing.assert_array_equal(kernel(tables), loop(tables))
    weights = jnp.arange(200.0)
    gradients = [
        jax.grad(lambda s, f=f: f(s) @ weights)(tables) for f in (kernel, loop)
    ]
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-3)


def test_clients_are_batched():
    blocks = hashed_gpu.Blocks(mixer_signs(), 100, 30, 2, 1, interpret=True)
    form = hashed._Form("blocked", mixer_signs(), 30, 2, 1)
    draws, x = form.draw(jax.random.key(2), 100), jnp.arange(100.0)
    both = jax.vmap(lambda x: hashed_gpu.apply(blocks, *draws, x))(jnp.stack([x, -x]))
    np.testing.assert_array_equal(both[0], -both[1])


@pytest.mark.parametrize("d", [3000, 4096, 5000, 2**17])
def test_the_transform_and_its_adjoint_are_those_of_butterflies(d):
    n = max(hadamard_gpu.BLOCK, 1 << (d - 1).bit_length())
    seeds = mixer_signs().seeds(jax.random.key(4), 1)
    mixing = hadamard_gpu.Mixing(mixer_signs(), d, n, interpret=True)
    x = jax.random.normal(jax.random.key(1), (d,))
    y = jax.random.normal(jax.random.key(2), (n,))
    signed = jnp.pad(flip(x, hadamard._mask(seeds, d)), (0, n - d))
    plain = hadamard.walsh_hadamard_by_butterflies
    near = {"rtol": 1e-5, "atol": 1e-3}
    mixed, backward = jax.vjp(lambda x: hadamard_gpu.mixed(mixing, seeds, x), x)
    np.testing.assert_allclose(mixed, plain(signed), **near)
    unmixed = hadamard_gpu.unmixed(mixing, seeds, y)
    expected = flip(plain(y)[:d], hadamard._mask(seeds, d))
    np.testing.assert_allclose(unmixed, expected, **near)
    np.testing.assert_array_equal(backward(y)[0], unmixed)


@pytest.mark.parametrize(
    "op",
    [
        sketch.count_sketch(70, rows=3),
        sketch.sparse_embedding(60, 4),
        sketch.srht(600),
    ],
)
def test_a_process_with_a_gpu_traces_kernels_and_cpus_ignore_them(op, monkeypatch):
    key, x = jax.random.key(0), jnp.arange(5000.0)
    alone = op.apply(key, x)
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    again = op.resize(op.size())  # nothing of it is traced yet
    assert "pallas_call" in str(jax.make_jaxpr(again.apply)(key, x))
    np.testing.assert_array_equal(again.apply(key, x), alone)
