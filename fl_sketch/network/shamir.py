"""Shamir's secret sharing (1979): t of n shares are the secret, t - 1 are noise.

The secret is the value at 0 of a random polynomial of degree t - 1 over the integers
modulo `PRIME`, and the share of holder i is its value at i + 1. Arithmetic is that of
Python's integers, whose time depends on their values.

>>> shares = split(bytes(31) + b"!", holders=[3, 5, 8], threshold=2)
>>> combine({3: shares[3], 8: shares[8]}) == bytes(31) + b"!"
True
"""

import functools
import os
from collections.abc import Callable, Mapping, Sequence

PRIME = 2**256 + 297  # the smallest prime that exceeds every secret
SECRET_BYTES = 32
SHARE_BYTES = 33
DRAWN_BYTES = 48  # of a coefficient: its distance from uniform is below 2^-127


def split(
    secret: bytes,
    holders: Sequence[int],
    threshold: int,
    random: Callable[[int], bytes] = os.urandom,
) -> dict[int, bytes]:
    """Returns a share for each holder, of which any `threshold` are the secret.

    Args:
      secret: 32 bytes.
      holders: different integers >= 0.
      random: `(count) -> bytes`.
    """
    drawn = (random(DRAWN_BYTES) for _ in range(threshold - 1))
    highest_first = [int.from_bytes(each, "little") % PRIME for each in drawn]
    highest_first.append(int.from_bytes(secret, "little"))
    return {
        holder: _value(highest_first, holder + 1).to_bytes(SHARE_BYTES, "little")
        for holder in holders
    }


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Returns the secret of shares by holder. Exactly `threshold` are enough.

    Raises:
      ValueError: for shares that are not those of one secret of 32 bytes, where that
        shows: fewer or other shares mostly give another secret.
    """
    weights = _weights(tuple(shares))
    numbers = (int.from_bytes(share, "little") for share in shares.values())
    pairs = zip(weights, numbers, strict=True)
    secret = sum(weight * number for weight, number in pairs) % PRIME
    if secret.bit_length() > 8 * SECRET_BYTES:
        msg = f"Expected shares of a secret of {SECRET_BYTES} bytes, got others."
        raise ValueError(msg)
    return secret.to_bytes(SECRET_BYTES, "little")


def _value(highest_first: Sequence[int], x: int) -> int:
    """Returns a polynomial's value by Horner's rule."""
    value = 0
    for coefficient in highest_first:
        value = (value * x + coefficient) % PRIME
    return value


@functools.lru_cache(maxsize=64)  # most clients of a cohort have the same holders
def _weights(holders: tuple[int, ...]) -> list[int]:
    """Returns Lagrange's weights: the value at 0 is their product with the shares."""
    weights = []
    for holder in holders:
        above = below = 1
        for other in holders:
            if other != holder:
                above = above * (other + 1) % PRIME
                below = below * (other - holder) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights
