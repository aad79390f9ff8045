"""Keys of two parties: agreed by X25519, derived by BLAKE2b, and what they seal.

The `cryptography` package does the arithmetic, and is imported when it is needed.

>>> mine, yours = KeyPair(bytes(range(32))), KeyPair(bytes(range(1, 33)))
>>> mine.agree(yours.public, MASK) == yours.agree(mine.public, MASK)
True
>>> mine.agree(yours.public, MASK) == mine.agree(yours.public, SEAL)
False
"""

import contextlib
import hashlib
import struct
from collections.abc import Iterator

KEY_BYTES = 32
TAG_BYTES = 16  # of what is sealed
MASK, SEAL = b"fl_sketch mask", b"fl_sketch seal"  # what an agreed key is for


@contextlib.contextmanager
def extra() -> Iterator[None]:
    """Says in one line that imports inside need the `cryptography` package.

    Raises:
      ValueError: where it is not installed.
    """
    try:
        yield
    except ImportError:
        msg = "Expected cryptography to be installed: pip install cryptography."
        raise ValueError(msg) from None


class KeyPair:
    """A key pair of X25519.

    Attributes:
      secret: the private key, 32 bytes.
      public: the public key, 32 bytes.
    """

    secret: bytes
    public: bytes

    def __init__(self, secret: bytes):
        """Reads a private key, which is any 32 random bytes."""
        with extra():
            from cryptography.hazmat.primitives.asymmetric import x25519
        self.secret = secret
        self._library = x25519
        self._private = x25519.X25519PrivateKey.from_private_bytes(secret)
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, public: bytes, purpose: bytes) -> bytes:
        """Returns the key of 32 bytes that this pair has with another one.

        Args:
          public: the public key of the other pair.
          purpose: `MASK` or `SEAL`.

        Raises:
          ValueError: for a public key with which every secret agrees.
        """
        other = self._library.X25519PublicKey.from_public_bytes(public)
        try:
            shared = self._private.exchange(other)
        except ValueError:
            msg = "Expected a public key of X25519, got one of a small subgroup."
            raise ValueError(msg) from None
        both = b"".join(sorted((self.public, public)))
        return hashlib.blake2b(
            both, key=shared, person=purpose, digest_size=KEY_BYTES
        ).digest()


def seal(key: bytes, round: int, sender: int, receiver: int, text: bytes) -> bytes:
    """Returns `text` encrypted and authenticated by ChaCha20-Poly1305.

    The nonce has the round and the sender, so that a pair's key has no nonce twice as
    long as a sender seals one text for a receiver in a round.
    """
    nonce, header = _envelope(round, sender, receiver)
    return _cipher(key).encrypt(nonce, text, header)


def unseal(key: bytes, round: int, sender: int, receiver: int, text: bytes) -> bytes:
    """Returns what `sender` sealed for `receiver` in this round.

    Raises:
      ValueError: for bytes that this sender did not seal for this receiver and round.
    """
    from cryptography.exceptions import InvalidTag

    nonce, header = _envelope(round, sender, receiver)
    try:
        return _cipher(key).decrypt(nonce, text, header)
    except InvalidTag:
        msg = f"Expected shares that client {sender} sealed for client {receiver}."
        raise ValueError(msg) from None


def _envelope(round: int, sender: int, receiver: int) -> tuple[bytes, bytes]:
    """Returns the nonce, and what is authenticated with the text."""
    header = struct.pack("<QII", round, sender, receiver)
    return header[:12], header


def _cipher(key: bytes):
    with extra():
        from cryptography.hazmat.primitives.ciphers import aead
    return aead.ChaCha20Poly1305(key)
