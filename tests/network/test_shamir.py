"""Enough shares are the secret, and fewer say nothing of it."""

import itertools
import random

import numpy as np
import pytest
from scipy import stats

from fl_sketch.network import shamir
from tests.refusals import refused

pytestmark = pytest.mark.fast
SECRETS = (bytes(32), b"\xff" * 32, bytes(range(32)))


def little(number, size):
    return number.to_bytes(size, "little")


def test_the_shares_are_those_of_the_best_known_example():
    """1234 + 166 x + 94 x^2, which stays below any modulus of this size."""
    shares = {
        0: 1494, 1: 1942, 2: 2578, 3: 3402, 4: 4414, 5: 5614,
    }  # fmt: skip
    drawn = iter([little(94, 48), little(166, 48)])
    made = shamir.split(little(1234, 32), [*shares], 3, lambda _: next(drawn))
    assert made == {i: little(share, 33) for i, share in shares.items()}
    for three in itertools.combinations(made, 3):
        assert shamir.combine({i: made[i] for i in three}) == little(1234, 32)


def test_the_modulus_is_a_prime_that_exceeds_every_secret():
    prime = shamir.PRIME
    odd, twos = (prime - 1) >> 3, 3
    assert odd % 2 and odd << twos == prime - 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41):  # Miller and Rabin
        powers = [pow(base, odd << i, prime) for i in range(twos)]
        assert powers[0] == 1 or prime - 1 in powers
    assert 2**256 < prime < 2 ** (8 * shamir.SHARE_BYTES)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("count, threshold", [(1, 1), (2, 2), (7, 4), (9, 9)])
def test_any_shares_that_are_enough_are_the_secret(secret, count, threshold):
    holders = random.Random(1).sample(range(2**32), count)
    shares = shamir.split(secret, holders, threshold)
    for size in range(threshold, count + 1):
        for some in itertools.combinations(holders, size):
            assert shamir.combine({i: shares[i] for i in some}) == secret


def test_too_few_shares_fit_every_secret_equally():
    """For each secret there is one further share with which they are that secret."""
    holders, threshold = [0, 1, 2, 3], 3
    shares = shamir.split(SECRETS[0], holders, threshold)
    for other in SECRETS:
        known = [(0, int.from_bytes(other, "little"))]
        known += [(i + 1, int.from_bytes(shares[i], "little")) for i in (0, 1)]
        third = 0  # the value at 4 of the parabola through the three points
        for x, y in known:
            for z, _ in known:
                if z != x:
                    y = y * (4 - z) * pow(x - z, -1, shamir.PRIME) % shamir.PRIME
            third += y
        forged = little(third % shamir.PRIME, 33)
        assert shamir.combine({0: shares[0], 1: shares[1], 3: forged}) == other


def uniform(threshold, secret):
    """Returns the p-value of two shares jointly, by the highest 3 bits of each."""
    source, counts = random.Random(5), np.zeros(64)
    for _ in range(6400):
        shares = shamir.split(secret, [0, 1], threshold, source.randbytes)
        one, two = (int.from_bytes(share, "little") >> 253 for share in shares.values())
        counts[8 * one + two] += 1
    return stats.chisquare(counts).pvalue


@pytest.mark.parametrize("secret", SECRETS)
def test_two_shares_of_three_are_noise_and_two_of_two_are_not(secret):
    assert uniform(3, secret) > 0.001
    assert uniform(2, secret) < 1e-9


def test_shares_of_another_secret_size_are_refused():
    with refused("32 bytes"):
        shamir.combine({0: little(2**256 + 5, 33)})
