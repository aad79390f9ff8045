"""Compressors keep their promises, and their bytes are the bytes they state."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fl_sketch import compressors, wire

KEY = jax.random.key(0)
D = 64
X = jax.random.normal(jax.random.key(1), (D,)) * (1 + jnp.arange(D) % 5)

CASES = {
    "top_k": compressors.top_k(10),
    "random_k": compressors.random_k(10),
    "random_k_biased": compressors.random_k(10, unbiased=False),
    "sign": compressors.sign(),
    "scaled_sign": compressors.scaled_sign(),
    "qsgd": compressors.qsgd(4),
    "qsgd_one_level": compressors.qsgd(1),
    "nearest": compressors.nearest(4),
    "nearest_one_level": compressors.nearest(1),
    "top_then_sign": compressors.then(compressors.top_k(10), compressors.scaled_sign()),
    "cocktail": compressors.then(
        compressors.random_k(40, unbiased=False),
        compressors.top_k(12),
        compressors.nearest(7),
    ),
}
every_compressor = pytest.mark.parametrize("name", CASES)
BITS = {
    "top_k": 10 * (32 + 6),
    "random_k": 10 * 32 + 64,
    "random_k_biased": 10 * 32 + 64,
    "sign": 64,
    "scaled_sign": 64 + 32,
    "qsgd": 64 * (1 + 3) + 32,
    "qsgd_one_level": 64 * (1 + 1) + 32,
    "nearest": 64 * (1 + 3) + 32,
    "nearest_one_level": 64 * (1 + 1) + 32,
    "top_then_sign": 10 * (1 + 6) + 32,
    "cocktail": 12 * (1 + 3) + 32 + 12 * 6 + 64,
}


@every_compressor
def test_bytes_are_the_stated_bits_rounded_up(name):
    case = CASES[name]
    assert case.bits(D) == BITS[name]
    arrays = case.compress(KEY, X)
    data = wire.encode(case.fields(D), arrays)
    assert len(data) == math.ceil(case.bits(D) / 8)
    received = case.expand(
        tuple(map(jnp.asarray, wire.decode(case.fields(D), data))), D
    )
    np.testing.assert_allclose(received, case.apply(KEY, X), rtol=1e-6)


@every_compressor
def test_jit_and_vmap_agree_with_the_plain_call(name):
    case = CASES[name]
    plain = case.apply(KEY, X)
    np.testing.assert_allclose(jax.jit(case.apply)(KEY, X), plain, rtol=1e-5)
    both = jax.vmap(case.apply, in_axes=(None, 0))(KEY, jnp.stack([X, X]))
    np.testing.assert_allclose(both[1], plain, rtol=1e-5)
    assert case.apply(KEY, X.astype(jnp.bfloat16)).dtype == jnp.float32


@every_compressor
def test_a_zero_vector_gives_no_nan_and_a_nan_is_not_hidden(name):
    case = CASES[name]
    zero = case.apply(KEY, jnp.zeros(D))
    assert jnp.isfinite(zero).all()
    if name not in ("sign",):
        np.testing.assert_array_equal(zero, 0)
    assert jnp.isnan(case.apply(KEY, jnp.full(D, jnp.nan))).any()
    if "random" not in name and name != "cocktail":
        assert jnp.isnan(case.apply(KEY, X.at[3].set(jnp.nan))[3])


@pytest.mark.parametrize("name", ["random_k", "qsgd", "qsgd_one_level"])
def test_unbiased_ones_are_unbiased(name):
    count = 20_000
    draw = jax.jit(jax.vmap(CASES[name].apply, in_axes=(0, None)))
    samples = np.asarray(draw(jax.random.split(KEY, count), X), np.float64)
    error = samples.mean(axis=0) - np.asarray(X)
    assert np.all(np.abs(error) <= 4 * samples.std(axis=0) / count**0.5 + 1e-9)
    mean_square = np.mean(np.sum((samples - np.asarray(X)) ** 2, axis=1))
    energy = float(X @ X)
    if name == "random_k":
        assert mean_square == pytest.approx((D / 10 - 1) * energy, rel=0.02)
    else:
        levels = 4 if name == "qsgd" else 1
        assert mean_square <= min(D / levels**2, D**0.5 / levels) * energy


@pytest.mark.parametrize(
    ("name", "kept"), [("top_k", 10 / D), ("random_k_biased", 10 / D)]
)
def test_contractions_contract(name, kept):
    draw = jax.vmap(CASES[name].apply, in_axes=(0, None))
    samples = draw(jax.random.split(KEY, 4000), X)
    left = float(jnp.mean(jnp.sum((samples - X) ** 2, axis=1)))
    assert left <= (1 - kept) * float(X @ X) * 1.02


CONTRACTIONS = [name for name, case in CASES.items() if case.contraction]


@pytest.mark.parametrize("name", [*CONTRACTIONS, "qsgd"])
@pytest.mark.parametrize("power", [0, 0.5, 1.5])
def test_memories_of_errors_stay_short_with_contractions_alone(name, power):
    """A constant update for 300 rounds, flat or with few large numbers."""
    d = 2000
    x = jax.random.normal(KEY, (d,)) / (1.0 + jnp.arange(d)) ** power

    @jax.jit
    def remembered(key):
        def one(memory, key):
            wanted = memory + x
            return wanted - CASES[name].apply(key, wanted), None

        memory, _ = jax.lax.scan(one, jnp.zeros_like(x), jax.random.split(key, 300))
        return jnp.linalg.norm(memory) / jnp.linalg.norm(x)

    kept = float(remembered(KEY))
    if name in CONTRACTIONS:
        assert kept < 400  # ten numbers of d: as much as 200 updates
    elif power == 0:
        assert not kept < 1e6


def test_scaled_sign_leaves_what_its_formula_says():
    left = float(jnp.sum((X - CASES["scaled_sign"].apply(KEY, X)) ** 2))
    expected = float(X @ X - jnp.sum(jnp.abs(X)) ** 2 / D)
    assert left == pytest.approx(expected, rel=1e-5)


def test_top_k_keeps_the_largest():
    x = jnp.array([1.0, -5.0, 0.5, 3.0, -2.0])
    kept = compressors.top_k(2).apply(KEY, x)
    np.testing.assert_array_equal(kept, [0, -5, 0, 3, 0])
    np.testing.assert_array_equal(compressors.top_k(5).apply(KEY, x), x)
    np.testing.assert_allclose(compressors.random_k(5).apply(KEY, x), x)


def test_then_is_associative_in_what_it_sends():
    a, b, c = (
        compressors.random_k(30, unbiased=False),
        compressors.top_k(9),
        compressors.qsgd(3),
    )
    left = compressors.then(compressors.then(a, b), c)
    right = compressors.then(a, compressors.then(b, c))
    assert left.bits(D) == right.bits(D)
    assert int(jnp.sum(left.apply(KEY, X) != 0)) <= 9


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: compressors.top_k(0), ValueError, "k=0"),
        (lambda: compressors.top_k(1.5), TypeError, "k=1.5"),
        (lambda: compressors.top_k(65).apply(KEY, X), ValueError, "<= 64.*k=65"),
        (lambda: compressors.random_k(65).bits(64), ValueError, "k=65"),
        (lambda: compressors.qsgd(0), ValueError, "levels=0"),
        (lambda: compressors.qsgd(2**31), ValueError, "<= 31"),
        (lambda: compressors.then(), ValueError, "at least one"),
        (
            lambda: compressors.then(compressors.sign(), compressors.top_k(1)).bits(D),
            ValueError,
            "last stage",
        ),
        (lambda: compressors.sign().apply(3, X), TypeError, "key"),
        (lambda: compressors.sign().apply(KEY, jnp.arange(4)), TypeError, "int32"),
        (lambda: compressors.sign().apply(KEY, X.reshape(8, 8)), ValueError, "vector"),
        (lambda: compressors.sign().apply(KEY, X[:0]), ValueError, "got 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@given(d=st.integers(1, 300), k=st.integers(1, 300), levels=st.integers(1, 300))
@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])
def test_sizes_hold_for_all_lengths(d, k, levels):
    k = min(k, d)
    x = np.random.default_rng(d).normal(size=d).astype(np.float32)
    for case, bits in [
        (compressors.top_k(k), k * (32 + math.ceil(math.log2(d)))),
        (compressors.qsgd(levels), d * (1 + math.ceil(math.log2(levels + 1))) + 32),
    ]:
        assert case.bits(d) == bits
        data = wire.encode(case.fields(d), case.compress(KEY, jnp.asarray(x)))
        assert len(data) == math.ceil(bits / 8)
