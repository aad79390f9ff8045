"""The secret of a private run: 256 bits from which all that protects is drawn.

The same noise on two sums would cancel in their difference. So what is drawn is a
function of the secret and of the program that makes the sums.
"""

import hashlib
import hmac
import os

import jax
import numpy as np

from fl_sketch.core import chacha
from fl_sketch.core.keys import roots_of
from fl_sketch.core.protocols import Key, Roots


class Secret:
    """32 bytes that are not shown by accident."""

    def __init__(self, raw: bytes):
        """Takes the `raw` bytes."""
        self._raw = raw

    def __repr__(self) -> str:
        """Hides the bytes."""
        return "Secret(...)"

    def reveal(self) -> bytes:
        """Returns the bytes."""
        return self._raw

    def sealed(self, program: str) -> "Secret":
        """Returns the secret of the rounds that a program with this digest plays."""
        return Secret(self._digest(b"fl_sketch: rounds of " + program.encode()))

    def name_of(self, program: str) -> bytes:
        """Returns 32 bytes by which a program is known, to those who have the secret.

        A digest alone would confirm guesses about data in the program's constants.
        """
        return self._digest(b"fl_sketch: name of " + program.encode())

    def _digest(self, message: bytes) -> bytes:
        return hmac.digest(self._raw, message, "sha256")

    @property
    def check(self) -> str:
        """Returns a value by which a damaged secret is recognised, and no more."""
        return hashlib.sha256(b"fl_sketch: check value" + self._raw).hexdigest()[:32]


def fresh() -> Secret:
    """Returns a secret of the operating system."""
    return Secret(os.urandom(chacha.KEY_BYTES))


def of_roots(key: Key | Roots) -> Secret:
    """Returns the secret of a run with these roots; a simulated one if all know it."""
    raw = np.asarray(jax.random.key_data(roots_of(key).secret)).tobytes()
    return Secret(raw if chacha.is_secret(key) else hashlib.sha256(raw).digest())


def roots(seed: int, secret: Secret | None) -> Roots:
    """Returns the roots of a run.

    Args:
      seed: the source of all randomness that may be known.
      secret: the source of all other randomness; None: `seed` decides all.
    """
    public = jax.random.key(seed)
    return Roots(public, chacha.key_of(secret.reveal()) if secret else public)


def placed(key: Key | Roots, sharding: jax.sharding.Sharding) -> Roots:
    """Returns the roots of a run on its devices, which may be of several processes."""
    found = roots_of(key)
    kinds = [jax.random.key_impl(root) for root in found]

    def wrapped(*words):
        pairs = zip(words, kinds, strict=True)
        return Roots(*(jax.random.wrap_key_data(one, impl=kind) for one, kind in pairs))

    words = [np.asarray(jax.random.key_data(root)) for root in found]
    return jax.jit(wrapped, out_shardings=sharding)(*words)
