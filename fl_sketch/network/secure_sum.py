"""Secure aggregation among sites that sign: a sum shows only if all of a roster stay.

In three steps a site sends a signed public key, then its message under one mask with
each other site of the roster and one mask of its own, then the seed of its own mask.
Masks of pairs cancel in the sum of all. Until every seed is there, the sum is uniform:
an attempt that fails before the seeds reveals nothing, and may be made again with new
keys. Whoever makes the kits draws a key of Ed25519 for each site, and each kit has the
public keys of all, so that a coordinator cannot put its own keys in their place.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fl_sketch.core import files, untrusted_files, wire
from fl_sketch.core.protocols import Field

FILE = "identity.json"  # of a site
KEY, SIGNATURE, SEED = 32, 64, 32  # bytes
ENTRY = 4 + KEY + SIGNATURE  # of a roster


class Identity(NamedTuple):
    """A site's name, its own key of Ed25519, and the public keys of all by name."""

    name: str
    private: bytes
    publics: Mapping[str, bytes]

    def __repr__(self) -> str:
        """Hides the private key."""
        return f"Identity({self.name})"


class Sum(NamedTuple):
    """What a sum is of: `length` numbers modulo 2^bits, with at most 32 bits."""

    run: str
    round: int
    exchange: int
    attempt: int
    length: int
    bits: int

    @property
    def field(self) -> Field:
        """The wire format of a masked message."""
        return Field(self.length, self.bits, "uint")

    @property
    def size(self) -> int:
        """The bytes of a masked message."""
        return -(-self.length * self.bits // 8)

    def signed(self, site: int, key: bytes) -> bytes:
        """Returns the text that a site signs of its key."""
        return json.dumps(["fl_sketch sum", *self, site, key.hex()]).encode()


class Party:
    """One site in one attempt at a sum. What is refused ends the attempt there."""

    def __init__(self, sum_: Sum, site: int, identity: Identity):
        """Draws the keys of an attempt for the site of this number."""
        x25519, _ = _cryptography()
        self.sum, self._site, self._identity = sum_, site, identity
        self._pair: Any = x25519.X25519PrivateKey.generate()
        self._public = self._pair.public_key().public_bytes_raw()
        self._seed = b""

    def key(self) -> bytes:
        """Returns this site's public key and its signature."""
        _, ed25519 = _cryptography()
        own = ed25519.Ed25519PrivateKey.from_private_bytes(self._identity.private)
        return self._public + own.sign(self.sum.signed(self._site, self._public))

    def masked(
        self, roster: bytes, names: Sequence[str], smallest: int, numbers: np.ndarray
    ) -> bytes:
        """Returns unsigned integers under masks, for one roster of the sites.

        Raises a ValueError for a second roster, one without this site or with too few
        sites, and for a key that its site did not sign for this sum.
        """
        x25519, ed25519 = _cryptography()
        pair, self._pair = self._pair, None  # of two, the difference would show
        keys = read_roster(roster, len(names))
        own = keys.get(self._site, b"")[:KEY] == self._public
        if pair is None or not own or len(keys) < smallest:
            msg = f"Expected one roster with this site and {smallest} sites or more, "
            raise ValueError(msg + f"got another, of {len(keys)}.")
        for site, entry in keys.items():
            public = self._identity.publics[names[site]]
            text = self.sum.signed(site, entry[:KEY])
            try:
                known = ed25519.Ed25519PublicKey.from_public_bytes(public)
                known.verify(entry[KEY:], text)
            except Exception:
                msg = f"Expected a key that {names[site]} signed, got another."
                raise ValueError(msg) from None
        self._seed, about = os.urandom(SEED), self.sum.signed(0, b"")
        words = numbers.astype(np.uint32) + _mask(self._seed, self.sum)
        for site, entry in keys.items():
            if site == self._site:
                continue
            other = x25519.X25519PublicKey.from_public_bytes(entry[:KEY])
            shared = hashlib.blake2b(pair.exchange(other), digest_size=64).digest()
            mask = _mask(hashlib.blake2b(about, key=shared).digest()[:SEED], self.sum)
            words = words + mask if self._site < site else words - mask
        return wire.encode([self.sum.field], [words & _lowest(self.sum.bits)])

    def seed(self) -> bytes:
        """Returns the seed of this site's own mask, once its message was sent."""
        if not self._seed:
            msg = "Expected a masked message before the seed of its mask, got none."
            raise ValueError(msg)
        seed, self._seed = self._seed, b""
        return seed


def total(
    sum_: Sum, masked: Mapping[int, bytes], seeds: Mapping[int, bytes]
) -> np.ndarray:
    """Returns the sum of all messages of a roster modulo 2^bits, uint32 [length]."""
    if masked.keys() != seeds.keys():
        msg = "Expected a seed for each masked message, got others."
        raise ValueError(msg)
    words = np.zeros(sum_.length, np.uint32)
    for site, message in masked.items():
        words += wire.decode([sum_.field], message)[0] - _mask(seeds[site], sum_)
    return words & _lowest(sum_.bits)


def write_roster(keys: Mapping[int, bytes]) -> bytes:
    """Returns the signed keys of sites as bytes."""
    return b"".join(site.to_bytes(4, "little") + keys[site] for site in sorted(keys))


def read_roster(roster: bytes, sites: int) -> dict[int, bytes]:
    """Returns the signed keys of a roster, by numbers of sites in rising order."""
    entries = [roster[at : at + ENTRY] for at in range(0, len(roster), ENTRY)]
    numbers = [int.from_bytes(one[:4], "little") for one in entries]
    rising = sorted({*numbers}) == numbers and all(one < sites for one in numbers)
    if len(roster) % ENTRY or not rising:
        msg = f"Expected a roster of some of {sites} sites, got something else."
        raise ValueError(msg)
    return {n: one[4:] for n, one in zip(numbers, entries, strict=True)}


def drawn(names: Sequence[str]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Returns a private and a public key for each name."""
    _, ed25519 = _cryptography()
    keys = {name: ed25519.Ed25519PrivateKey.generate() for name in names}
    publics = {name: key.public_key().public_bytes_raw() for name, key in keys.items()}
    return {name: key.private_bytes_raw() for name, key in keys.items()}, publics


def write_identities(folders: Mapping[str, pathlib.Path]) -> None:
    """Draws a key for each site, and writes it to the site's folder, by its name."""
    privates, publics = drawn([*folders])
    public = {name: one.hex() for name, one in publics.items()}
    for name, folder in folders.items():
        given = {"name": name, "private": privates[name].hex(), "publics": public}
        path, text = folder / FILE, json.dumps(given, indent=1)
        files.write_private(path, text.encode(), folder / f".{FILE}.partial")


def read_identity(folder: pathlib.Path) -> Identity | None:
    """Returns the identity of the site whose kit has this folder; None: it has none."""
    path = folder / FILE
    if not path.exists():
        return None
    with untrusted_files.reading(path, "to be unchanged"):
        given = json.loads(path.read_text())
        known = {name: bytes.fromhex(one) for name, one in given["publics"].items()}
        return Identity(str(given["name"]), bytes.fromhex(given["private"]), known)


def _mask(seed: bytes, sum_: Sum) -> np.ndarray:
    """Returns the mask of a seed that is used once: ChaCha20 with the nonce zero."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(4 * sum_.length)), "<u4").astype(np.uint32)


def _lowest(bits: int) -> np.uint32:
    return np.uint32(2**bits - 1)


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
    except ImportError:
        msg = (
            "Expected the package cryptography: pip install -e '.[secure]' in a clone."
        )
        raise ValueError(msg) from None
    return x25519, ed25519
