"""Masks are ChaCha20's, keys are X25519's, and a round has masks of its own."""

import hashlib
import sys

import numpy as np
import pytest

from fl_sketch import network
from fl_sketch.network import keys, masks
from tests.network.parties import looks_random, terms
from tests.refusals import refused

pytestmark = pytest.mark.fast

# RFC 8439, appendix A.1, test vector 1: a key, a counter and a nonce of zeros.
STREAM = bytes.fromhex(
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
)
# RFC 7748, section 6.1.
ALICE = bytes.fromhex(
    "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
)
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
PUBLIC = (
    "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
    "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
)
SHARED = bytes.fromhex(
    "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
)


def mask(key, round, count=5000, dtype=np.uint16):
    made = np.zeros(count, dtype)
    masks.add(made, key, round)
    return made


def test_the_mask_of_a_key_of_zeros_is_that_of_the_rfc():
    assert mask(bytes(32), 0, 64, np.uint8).tobytes() == STREAM


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_a_mask_is_one_stream_whatever_the_type_and_length(dtype):
    key, size = b"k" * 32, np.dtype(dtype).itemsize
    whole = mask(key, 7, 3 * masks.CHUNK + 8, np.uint8)
    for count in (1, 13, masks.CHUNK // size, masks.CHUNK // size + 1, 40000):
        stream = whole[: count * size].tobytes()
        assert mask(key, 7, count, dtype).tobytes() == stream


def test_a_pair_takes_its_masks_off_each_other():
    sum_of_both = np.arange(1000, dtype=np.uint8)
    masks.add_pair(sum_of_both, b"k" * 32, 2, own=4, other=9)
    assert (sum_of_both != np.arange(1000, dtype=np.uint8)).any()
    masks.add_pair(sum_of_both, b"k" * 32, 2, own=9, other=4)
    np.testing.assert_array_equal(sum_of_both, np.arange(1000, dtype=np.uint8))


def test_no_two_rounds_and_no_two_keys_have_a_mask_in_common():
    one = mask(b"k" * 32, 0)
    for key, round in [(b"k" * 32, 1), (b"k" * 32, 2**32), (b"l" * 32, 0)]:
        other = mask(key, round)
        assert looks_random(other, 16)
        assert looks_random(one - other, 16)
    assert not looks_random(one - mask(b"k" * 32, 0), 16)


def test_keys_agree_as_in_the_rfc():
    """The agreed key is a keyed hash of the shared point and both public keys."""
    alice, bob = keys.KeyPair(ALICE), keys.KeyPair(BOB)
    assert (alice.public.hex(), bob.public.hex()) == PUBLIC
    for purpose in (keys.MASK, keys.SEAL):
        both = b"".join(sorted((alice.public, bob.public)))
        hashed = hashlib.blake2b(both, key=SHARED, person=purpose, digest_size=32)
        assert alice.agree(bob.public, purpose) == hashed.digest()


def test_two_parties_agree_on_a_key_for_each_purpose():
    one, two = keys.KeyPair(b"1" * 32), keys.KeyPair(b"2" * 32)
    agreed = {
        purpose: one.agree(two.public, purpose) for purpose in (keys.MASK, keys.SEAL)
    }
    assert agreed == {p: two.agree(one.public, p) for p in agreed}
    assert len({*agreed.values()}) == 2
    third = keys.KeyPair(b"3" * 32)
    assert third.agree(one.public, keys.MASK) not in agreed.values()


def test_a_public_key_that_agrees_with_all_is_refused():
    with refused("public key"):
        keys.KeyPair(b"1" * 32).agree(bytes(32), keys.MASK)


def test_what_is_sealed_is_for_one_receiver_and_one_round():
    sealed = keys.seal(b"k" * 32, 5, 1, 2, b"share")
    assert keys.unseal(b"k" * 32, 5, 1, 2, sealed) == b"share"
    for key, round, sender, receiver, text in [
        (b"l" * 32, 5, 1, 2, sealed),
        (b"k" * 32, 6, 1, 2, sealed),
        (b"k" * 32, 5, 2, 1, sealed),
        (b"k" * 32, 5, 1, 3, sealed),
        (b"k" * 32, 5, 1, 2, sealed[:-1] + bytes([sealed[-1] ^ 1])),
    ]:
        with refused("client"):
            keys.unseal(key, round, sender, receiver, text)


def test_a_missing_library_is_one_line_and_clear_sums_need_none(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with refused("pip install cryptography"):
        network.Client(terms(), 1)
    ones = {i: np.ones(3, np.uint8) for i in range(2)}
    total = network.clear(length=3, bits=8).sum(ones, round=0).total
    np.testing.assert_array_equal(total, 2)
