"""Random keys by purpose, and the check of keys in every function that takes one.

All clients and the server share a fresh key in each round, by which messages are
sketched and desketched. It is derived from the public root. Cohorts, batches and noise
are derived from the secret root.
"""

import enum

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core.protocols import Key, Keys, Roots


class Purpose(enum.IntEnum):
    """The purpose of a key. A new purpose takes a new number; none is reused.

    Two are seeds of things that are the same in all runs.
    """

    SHARED = 0
    OWN = 1
    SERVER = 2
    COHORT = 3
    BATCHES = 4
    NOISE = 5
    LOSS = 7  # dropout and augmentation, of a client's steps
    MIXING = 9  # of a message's numbers, before they become integers
    ROUNDING = 10  # to integers
    THRESHOLD = 1 << 16  # noise on an adaptive threshold's count, besides exchanges'
    STORED = 0x570  # a seed: of operators that are one matrix for all rounds
    HASHES = 0xFE7C4  # a seed: of the hashes that all rounds of FetchSGD share
    FACTORS = 0xFAC7  # the first factors of lora
    INITIAL = 0x1217  # the first weights; no round has this number, see `for_purpose`
    REST = 0x4E57  # hashes of HEAPRIX's second sketch
    ATTACK = 0xA77A  # an attacker's own starts
    COIN = 0xC014  # MARINA's
    FILLING = 0xF111  # random coordinates of HEAVYMIX
    AGAIN = 0xA6A1  # noise of a round that is played again, with other answers


def roots_of(key: Key | Roots) -> Roots:
    """Returns the roots of a run; a single `key` is both, and gives no privacy."""
    return key if isinstance(key, Roots) else Roots(key, key)


def apart(key: Key, purpose: Purpose) -> Key:
    """Returns a key made of `key` for a `purpose`."""
    return jax.random.fold_in(key, purpose)


def for_purpose(key: Key, round_number, purpose: Purpose) -> Key:
    """Returns the key of a round for a purpose, from a root.

    Rounds skip the number of the initial weights, whose key is `apart(key, INITIAL)`.
    The round's number may be traced.
    """
    number = round_number + (round_number >= Purpose.INITIAL)
    return apart(jax.random.fold_in(key, number), purpose)


def of_round(key: Key | Roots, round_number) -> Keys:
    """Returns the keys of a round; `of_client` makes the clients' keys of them."""
    public, secret = roots_of(key)
    return Keys(
        shared=for_purpose(public, round_number, Purpose.SHARED),
        own=for_purpose(secret, round_number, Purpose.OWN),
        server=for_purpose(secret, round_number, Purpose.SERVER),
    )


def of_client(keys: Keys, client) -> Keys:
    """Returns the keys of one client, of those of a round; only `own` depends on it."""
    return keys._replace(own=jax.random.fold_in(keys.own, client))


def round_keys(key: Key | Roots, round_number, client) -> Keys:
    """Returns the keys of one client in one round; both numbers may be traced."""
    return of_client(of_round(key, round_number), client)


def again(key: Key, digest: bytes) -> Key:
    """Returns a key made of `key` and a digest, of whole words of 32 bits.

    It is for noise on another sum than that which has the noise of `key`.
    """
    for word in np.frombuffer(digest, "<u4"):
        key = jax.random.fold_in(key, word)
    return apart(key, Purpose.AGAIN)


def for_batches(keys: Keys) -> Key:
    """Returns the key by which a client with these `keys` draws its batches."""
    return apart(keys.own, Purpose.BATCHES)


def batch_key(key: Key | Roots, round_number, client) -> Key:
    """Returns the key by which a client's batches of a round are drawn."""
    return for_batches(round_keys(key, round_number, client))


def cohort_key(key: Key | Roots, round_number) -> Key:
    """Returns the key by which a round's clients are drawn, from the secret root."""
    return for_purpose(roots_of(key).secret, round_number, Purpose.COHORT)


def sketch_keys(key: Key | Roots, rounds: int) -> Key:
    """Returns the shared key of each of the first `rounds`, an array of keys.

    The server sends it with the round's mean. Clients learn nothing else about the
    randomness of a run, and cannot derive other keys from it.
    """
    public = roots_of(key).public
    return jax.vmap(lambda number: for_purpose(public, number, Purpose.SHARED))(
        jnp.arange(rounds)
    )


def require_key(key: Key) -> None:
    """Raises a TypeError unless `key` is a single typed key.

    Raw `uint32[2]` keys are refused: an array of two numbers is easily mistaken for
    data, and jax keeps them only for old programs.
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
