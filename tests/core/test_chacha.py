"""The generator is ChaCha, and no two of its uses share a block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fl_sketch.core import chacha, keys
from fl_sketch.core.protocols import Roots

# RFC 8439, section 2.3.2, and the first block of 12 rounds for a key of zeros.
KEY, NONCE = bytes(range(32)), bytes.fromhex("000000090000004a00000000")
TWENTY = (
    "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
    "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
)
TWELVE = (
    "9bf49a6a0755f953811fce125f2683d50429c3bb49e074147e0089a52eae155f"
    "0564f879d27ae3c02ce82834acfa8c793a629f2ca0de6919610be82f411326be"
)


def block(key, counter, nonce, **options):
    words = [int(word) for word in np.frombuffer(nonce, "<u4")]
    counters = jnp.array([counter], jnp.uint32)
    made = chacha.blocks(jnp.asarray(chacha.words_of(key)), counters, words, **options)
    return np.asarray(made[:, 0]).astype("<u4").tobytes().hex()


def test_the_block_function_is_that_of_the_rfc_and_of_twelve_rounds():
    assert block(KEY, 1, NONCE, rounds=20) == TWENTY
    assert block(bytes(32), 0, bytes(12)) == TWELVE


@pytest.mark.parametrize("rounds", [20, 12])
def test_many_blocks_are_those_that_few_are(rounds):
    key, nonce = jnp.asarray(chacha.words_of(KEY)), (1, 2, 3)
    counters = jnp.arange(2 * chacha.FEW, dtype=jnp.uint32)
    many = chacha.blocks(key, counters, nonce, rounds=rounds)
    few = chacha.blocks(key, counters[-chacha.FEW :], nonce, rounds=rounds)
    np.testing.assert_array_equal(many[:, -chacha.FEW :], few)


def test_bits_keys_and_folds_are_blocks_of_their_own():
    key = chacha.key_of(KEY)
    bits = np.asarray(jax.random.bits(key, (16,), jnp.uint32))
    split = np.asarray(jax.random.key_data(jax.random.split(key, 3)))
    fold = np.asarray(jax.random.key_data(jax.random.fold_in(key, 2)))
    for words, counter, purpose in ((bits, 0, 0), (split[2], 2, 1), (fold, 2, 2)):
        nonce = purpose.to_bytes(4, "little") + bytes(8)
        expected = bytes.fromhex(block(KEY, counter, nonce))
        assert words.astype("<u4").tobytes() == expected[: 4 * words.size]


@pytest.mark.parametrize("count", [1, 15, 17, 70_000])
def test_bits_are_uniform_and_all_different(count):
    words = np.asarray(jax.random.bits(chacha.key_of(KEY), (count,), jnp.uint32))
    assert words.shape == (count,)
    assert len(set(words.tolist())) >= count - 2
    if count > 1000:
        assert stats.kstest(words / 2.0**32, "uniform").pvalue > 1e-3


def test_everything_of_jax_random_runs_on_such_keys_also_mapped():
    many = jax.random.split(chacha.key_of(KEY), 4)
    drawn = jax.jit(jax.vmap(lambda k: jax.random.uniform(k, (3,))))(many)
    alone = jnp.stack([jax.random.uniform(k, (3,)) for k in many])
    np.testing.assert_array_equal(drawn, alone)
    keys.require_key(many[0])
    with pytest.raises(ValueError, match="32 bytes, got 31"):
        chacha.key_of(bytes(31))


def test_only_a_root_of_this_kind_and_of_its_own_is_secret():
    public, other = jax.random.split(jax.random.key(0))
    secret = chacha.key_of(KEY)
    assert chacha.is_secret(Roots(public, secret))
    for guessable in (
        public,
        Roots(public, other),  # 64 bits, from a seed
        Roots(public, jax.random.key(1, impl="rbg")),
        secret,  # clients are told the public root
        Roots(secret, secret),
    ):
        assert not chacha.is_secret(guessable)
