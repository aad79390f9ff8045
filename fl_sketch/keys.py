"""Random keys: the one check that every function taking a key makes.

One key a round is shared by all clients and the server, so sketching and
de-sketching a round's message use the same key, and every round uses a fresh one.
"""

import enum

import jax
import jax.numpy as jnp

from fl_sketch.protocols import Key, Keys


class Purpose(enum.IntEnum):
    """What a key is for. A new purpose takes a new number; none is ever reused."""

    SHARED = 0
    OWN = 1
    SERVER = 2
    COHORT = 3
    BATCHES = 4
    NOISE = 5
    ITERATE = 6


def for_purpose(key: Key, round_number, purpose: Purpose) -> Key:
    """Returns the key of a round for a purpose."""
    return jax.random.fold_in(jax.random.fold_in(key, round_number), purpose)


def round_keys(key: Key, round_number, client) -> Keys:
    """Returns the keys of one client in one round."""
    own = for_purpose(key, round_number, Purpose.OWN)
    return Keys(
        shared=for_purpose(key, round_number, Purpose.SHARED),
        own=jax.random.fold_in(own, client),
        server=for_purpose(key, round_number, Purpose.SERVER),
    )


def batch_key(key: Key, round_number, client) -> Key:
    """Returns the key by which a client's batches of a round are drawn."""
    own = round_keys(key, round_number, client).own
    return jax.random.fold_in(own, Purpose.BATCHES)


def require_key(key: Key) -> None:
    """Raises a TypeError unless `key` is a single typed key.

    Raw `uint32[2]` keys are refused: an array of two numbers is too easily
    mistaken for data, and jax keeps them for old programs only.
    """
    dtype = getattr(key, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        if key.shape == ():
            return
        got = f"an array of keys with shape {key.shape}"
    else:
        got = f"{type(key).__name__} of dtype {dtype}" if dtype else repr(key)
    msg = f"Expected key to be one typed key from jax.random.key(seed), got {got}."
    raise TypeError(msg)
