"""Lengths of messages in bits and bytes, exact beyond what 32 bits can count.

A length that is known beforehand is a Python integer. One that depends on the round is
two words of 32 bits, since devices have no integers of 64: a model of 2^31 - 1 numbers
takes 2^36 bits.

>>> whole = either(jnp.array(True), 32 * (2**31 - 1), 100)
>>> int(number(whole_bytes(whole + 5)))
8589934589
"""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

WORD = 32  # bits of a half


class Wide(NamedTuple):
    """A length of up to 64 bits, as two words: `low`, and what is above, `high`."""

    low: jax.Array
    high: jax.Array

    def __add__(self, other: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns the sum with an `other` length."""
        other = wide(other)
        low = self.low + other.low
        carry = (low < other.low).astype(jnp.uint32)
        return type(self)(low, self.high + other.high + carry)

    __radd__ = __add__


Length = int | jax.Array | Wide


def wide(length: Length) -> Wide:
    """Returns a `length` as two words; on the host it may have 63 bits."""
    if isinstance(length, Wide):
        return length
    if isinstance(length, jax.Array):
        low = length.astype(jnp.uint32)
        return Wide(low, jnp.zeros_like(low))
    whole = np.asarray(length, np.int64)
    words = whole % 2**WORD, whole >> WORD
    return Wide(*(jnp.asarray(word.astype(np.uint32)) for word in words))


def either(first: jax.Array, one: Length, other: Length) -> Wide:
    """Returns the length `one` where `first` is true, and else the `other`."""
    pairs = zip(wide(one), wide(other), strict=True)
    return Wide(*(jnp.where(first, a, b) for a, b in pairs))


def times(length: Length, counts: np.ndarray) -> Wide:
    """Returns a `length` as often as each of these `counts` says, whole numbers >= 0.

    >>> number(times(2**33 + 1, np.array([0, 3]))).tolist()
    [0, 25769803779]
    """
    none = jnp.zeros(counts.shape, jnp.uint32)
    total, doubled = Wide(none, none), wide(length)
    for bit in range(int(counts.max()).bit_length()):
        total = either(jnp.asarray(counts >> bit & 1 == 1), total + doubled, total)
        doubled = doubled + doubled
    return total


def whole_bytes(bits: Length) -> Wide:
    """Returns how many bytes a message of so many `bits` takes."""
    if isinstance(bits, int):
        return wide(-(-bits // 8))
    low, high = wide(bits) + 7
    return Wide((low >> 3) | (high << (WORD - 3)), high >> 3)


def number(length: int | Wide) -> Any:
    """Returns a `length`, or an array of them, as numpy's integers of 64 bits."""
    if isinstance(length, int | np.integer):
        return np.int64(length)
    low, high = (np.asarray(word).astype(np.int64) for word in length)
    return (high << WORD) + low
