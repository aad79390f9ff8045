"""Whole numbers modulo 2^bits, as a secure aggregation adds them up.

They are words of 32 bits, whose sums wrap around by themselves.

>>> words = jnp.array([5, -3], jnp.int32).astype(jnp.uint32)
>>> reduced(words, 8)
Array([  5, 253], dtype=uint32)
>>> centred(reduced(words, 8), 8)
Array([ 5, -3], dtype=int32)
"""

import jax
import jax.numpy as jnp
from jax import lax

WORD = 32


def reduced(words: jax.Array, bits: int) -> jax.Array:
    """Returns the words modulo 2^bits, below 2^bits, uint32: what is on the wire."""
    return words & jnp.uint32((1 << bits) - 1)


def centred(words: jax.Array, bits: int) -> jax.Array:
    """Returns the numbers from -2^(bits-1) to 2^(bits-1) - 1 that words mean, int32."""
    signed = lax.bitcast_convert_type(words << (WORD - bits), jnp.int32)
    return signed >> (WORD - bits)  # which repeats the sign
